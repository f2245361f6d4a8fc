// A client of attnd from the .proto alone: attnd-interop ADDRESS [FOLDER].
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "attnd/v1"
)

const pieceBytes = 256 << 10

// Float32 values as the little-endian bytes that travel, and back.
func toBytes(values []float32) []byte {
	var out bytes.Buffer
	must(binary.Write(&out, binary.LittleEndian, values))
	return out.Bytes()
}

func toValues(data []byte) []float32 {
	values := make([]float32, len(data)/4)
	must(binary.Read(bytes.NewReader(data), binary.LittleEndian, values))
	return values
}

// One sequence, one head: [1, 1, rows, d].
func tensor(rows int64, values ...float32) *pb.Tensor {
	shape := []int64{1, 1, rows, int64(len(values)) / rows}
	return &pb.Tensor{Dtype: pb.DataType_DATA_TYPE_FLOAT32, Shape: shape, Data: toBytes(values)}
}

func lesson() *pb.AttendRequest {
	return &pb.AttendRequest{
		Q:       tensor(1, 1, 0, 0.5, 1),
		K:       tensor(3, 1, 0, 0.8, 1, 0, 1, 0.2, 0, 0.2, 0.2, 0.4, 0.1),
		V:       tensor(3, 0.9, 0.1, 0.7, 0.8, 0.1, 0.9, 0.2, 0.1, 0.3, 0.3, 0.5, 0.2),
		Outputs: []pb.OutputKind{pb.OutputKind_OUTPUT_KIND_WEIGHTS},
	}
}

func wrong() *pb.AttendRequest {
	request := lesson()
	request.K = tensor(3, 1, 0, 0, 1, 1, 1)
	return request
}

func show(name string, t *pb.Tensor) {
	fmt.Print(name)
	for _, value := range toValues(t.Data) {
		fmt.Printf(" %.4f", value)
	}
	fmt.Println()
}

func within(limit time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	_ = cancel // the deadline ends it
	return ctx
}

func unary(client pb.AttentionServiceClient) {
	reply, err := client.Attend(within(time.Minute), lesson())
	must(err)
	show("weights", reply.Extras[0].Tensor)
	show("output", reply.Output)
}

// Prints the code and the words of a call that fails.
func refused(name string, client pb.AttentionServiceClient, request *pb.AttendRequest, limit time.Duration) {
	_, err := client.Attend(within(limit), request)
	s := status.Convert(err)
	fmt.Println(name, s.Code(), s.Message())
}

// Seconds of work.
func long() *pb.AttendRequest {
	empty := tensor(60000, make([]float32, 60000)...)
	options := &pb.Options{Mode: pb.ComputeMode_COMPUTE_MODE_REFERENCE}
	return &pb.AttendRequest{Q: empty, K: empty, V: empty, Options: options}
}

func filled(salt int64, shape ...int64) *pb.Tensor {
	values := make([]float32, product(shape))
	for i := range values {
		values[i] = float32(float64((int64(i)*389+salt*101)%9973)/4986 - 1)
	}
	return &pb.Tensor{Dtype: pb.DataType_DATA_TYPE_FLOAT32, Shape: shape, Data: toBytes(values)}
}

func product(shape []int64) int64 {
	size := int64(1)
	for _, n := range shape {
		size *= n
	}
	return size
}

// Problem 1 is wrong, problem 2 is large and comes in pieces; the stream stays open until both are closed.
func stream(client pb.AttentionServiceClient, folder string) {
	calls, err := client.AttendStream(within(time.Minute))
	must(err)
	go send(calls)
	blocks, closings := map[pb.OutputKind][]*pb.Block{}, map[uint64]*pb.ProblemClosing{}
	for {
		reply, err := calls.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		must(err)
		if b := reply.GetBlock(); b != nil {
			blocks[b.Kind] = append(blocks[b.Kind], b)
			continue
		}
		closings[reply.ProblemId] = reply.GetClosing()
		if len(closings) == 2 {
			must(calls.CloseSend())
		}
	}
	fmt.Println("stream_error", closings[1].Error.Code, closings[1].Error.Message)
	if e := closings[2].Error; e != nil {
		log.Fatal(e.Message)
	}
	for _, output := range closings[2].Outputs {
		name := strings.ToLower(strings.TrimPrefix(output.Kind.String(), "OUTPUT_KIND_"))
		must(os.WriteFile(filepath.Join(folder, name+".f32"), assemble(output.Shape, blocks[output.Kind]), 0o644))
		shape := strings.Trim(fmt.Sprint(output.Shape), "[]")
		fmt.Println("stream", name, shape, "in", len(blocks[output.Kind]), "blocks")
	}
}

func send(calls pb.AttentionService_AttendStreamClient) {
	must(calls.Send(&pb.AttendStreamRequest{ProblemId: 1, Part: &pb.AttendStreamRequest_Header{Header: wrong()}}))
	tensors := map[string]*pb.Tensor{
		"q": filled(0, 2, 4, 600, 64), "k": filled(1, 2, 2, 600, 64), "v": filled(2, 2, 2, 600, 64),
	}
	empty := func(t *pb.Tensor) *pb.Tensor { return &pb.Tensor{Dtype: t.Dtype, Shape: t.Shape} }
	header := &pb.AttendRequest{
		Q: empty(tensors["q"]), K: empty(tensors["k"]), V: empty(tensors["v"]),
		Options: &pb.Options{Scale: proto.Float64(1), Causal: true},
		Outputs: []pb.OutputKind{pb.OutputKind_OUTPUT_KIND_LSE},
	}
	must(calls.Send(&pb.AttendStreamRequest{ProblemId: 2, Part: &pb.AttendStreamRequest_Header{Header: header}}))
	for name, t := range tensors {
		for at := 0; at < len(t.Data); at += pieceBytes {
			end := at + pieceBytes
			if end > len(t.Data) {
				end = len(t.Data)
			}
			piece := &pb.TensorPiece{Tensor: name, OffsetBytes: int64(at), Data: t.Data[at:end]}
			must(calls.Send(&pb.AttendStreamRequest{ProblemId: 2, Part: &pb.AttendStreamRequest_Piece{Piece: piece}}))
		}
	}
}

// Puts blocks at their places.
func assemble(shape []int64, blocks []*pb.Block) []byte {
	heads, rows, columns := shape[1], shape[2], shape[3]
	whole := bytes.Repeat([]byte{0xff}, int(4*product(shape))) // NaN
	for _, b := range blocks {
		for row := int64(0); row < b.Rows; row++ {
			to := ((b.Batch*heads+b.Head)*rows+b.FirstRow+row)*columns + b.FirstColumn
			copy(whole[4*to:], b.Data[4*row*b.Columns:4*(row+1)*b.Columns])
		}
	}
	return whole
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	folder := "."
	if len(os.Args) > 2 {
		folder = os.Args[2]
	}
	connection, err := grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(err)
	defer connection.Close()
	client := pb.NewAttentionServiceClient(connection)
	unary(client)
	refused("error", client, wrong(), time.Minute)
	refused("deadline", client, long(), 3*time.Second)
	stream(client, folder)
}
