'use strict';
// A client of attnd from the .proto alone: node client.js ADDRESS [FOLDER], with the packages of package.json on
// NODE_PATH.
const fs = require('fs');
const path = require('path');
const grpc = require('@grpc/grpc-js');
const protoLoader = require('@grpc/proto-loader');

const PROTO = path.join(__dirname, '../../../proto');
const PIECE_BYTES = 256 << 10;
const definition = protoLoader.loadSync('attnd/v1/attention.proto', {
  includeDirs: [PROTO], keepCase: true, enums: String, longs: Number, defaults: true, oneofs: true,
});
const {AttentionService} = grpc.loadPackageDefinition(definition).attnd.v1;

// Float32 values as the little-endian bytes that travel, and back.
function toBytes(values) {
  const bytes = Buffer.alloc(4 * values.length);
  values.forEach((value, i) => bytes.writeFloatLE(value, 4 * i));
  return bytes;
}
const toValues = (bytes) => Array.from({length: bytes.length / 4}, (_, i) => bytes.readFloatLE(4 * i));

// One sequence, one head: [1, 1, N, d].
const tensor = (rows) =>
  ({dtype: 'DATA_TYPE_FLOAT32', shape: [1, 1, rows.length, rows[0].length], data: toBytes(rows.flat())});

const lesson = {
  q: tensor([[1, 0, 0.5, 1]]),
  k: tensor([[1, 0, 0.8, 1], [0, 1, 0.2, 0], [0.2, 0.2, 0.4, 0.1]]),
  v: tensor([[0.9, 0.1, 0.7, 0.8], [0.1, 0.9, 0.2, 0.1], [0.3, 0.3, 0.5, 0.2]]),
  outputs: ['OUTPUT_KIND_WEIGHTS'],
};
const wrong = {...lesson, k: tensor([[1, 0], [0, 1], [1, 1]])};
// Seconds of work.
const empty = {dtype: 'DATA_TYPE_FLOAT32', shape: [1, 1, 60000, 1], data: Buffer.alloc(4 * 60000)};
const long = {q: empty, k: empty, v: empty, options: {mode: 'COMPUTE_MODE_REFERENCE'}};
const show = (name, {data}) => console.log(name, ...toValues(data).map((value) => value.toFixed(4)));
const after = (ms) => ({deadline: Date.now() + ms});

// Ends with the reply, or throws the server's refusal: `code` and `details`.
const attend = (client, request, ms) => new Promise((resolve, reject) => {
  client.Attend(request, after(ms), (error, reply) => (error ? reject(error) : resolve(reply)));
});

async function unary(client) {
  const reply = await attend(client, lesson, 60000);
  show('weights', reply.extras[0].tensor);
  show('output', reply.output);
}

// Prints the code and the words of a call that fails.
async function refused(name, client, request, ms) {
  await attend(client, request, ms).catch((error) => console.log(name, grpc.status[error.code], error.details));
}

function filled(salt, shape) {
  const size = shape.reduce((product, n) => product * n);
  return {shape, data: toBytes(Array.from({length: size}, (_, i) => ((i * 389 + salt * 101) % 9973) / 4986 - 1))};
}

// Puts blocks at their places.
function assemble({shape}, blocks) {
  const [, heads, rows, columns] = shape;
  const whole = Buffer.alloc(4 * shape.reduce((product, n) => product * n), 0xff);  // NaN
  for (const b of blocks) {
    for (let row = 0; row < b.rows; row++) {
      const to = ((b.batch * heads + b.head) * rows + b.first_row + row) * columns + b.first_column;
      b.data.copy(whole, 4 * to, 4 * row * b.columns, 4 * (row + 1) * b.columns);
    }
  }
  return whole;
}

// Problem 1 is wrong, problem 2 is large and comes in pieces; the stream stays open until both are closed.
function stream(client, folder) {
  const tensors = {q: filled(0, [2, 4, 600, 64]), k: filled(1, [2, 2, 600, 64]), v: filled(2, [2, 2, 600, 64])};
  const header = {options: {scale: 1, causal: true}, outputs: ['OUTPUT_KIND_LSE']};
  for (const [name, {shape}] of Object.entries(tensors)) header[name] = {dtype: 'DATA_TYPE_FLOAT32', shape};
  return new Promise((resolve, reject) => {
    const call = client.AttendStream(after(60000));
    const blocks = [], closings = {};
    call.on('error', reject);
    call.on('data', ({problem_id: id, block, closing}) => {
      if (block) blocks.push(block);
      else closings[id] = closing;
      if (closings[1] && closings[2]) call.end();
    });
    call.on('end', () => {
      const {error} = closings[1];
      console.log('stream_error', error.code, error.message);
      if (closings[2].error) return reject(new Error(closings[2].error.message));
      for (const output of closings[2].outputs) {
        const mine = blocks.filter(({kind}) => kind === output.kind);
        const name = output.kind.replace('OUTPUT_KIND_', '').toLowerCase();
        fs.writeFileSync(path.join(folder, `${name}.f32`), assemble(output, mine));
        console.log('stream', name, ...output.shape, 'in', mine.length, 'blocks');
      }
      return resolve();
    });
    call.write({problem_id: 1, header: wrong});
    call.write({problem_id: 2, header});
    for (const [name, {data}] of Object.entries(tensors)) {
      for (let at = 0; at < data.length; at += PIECE_BYTES) {
        call.write({problem_id: 2, piece: {tensor: name, offset_bytes: at, data: data.subarray(at, at + PIECE_BYTES)}});
      }
    }
  });
}

async function main([address, folder = '.']) {
  const client = new AttentionService(address, grpc.credentials.createInsecure());
  await unary(client);
  await refused('error', client, wrong, 60000);
  await refused('deadline', client, long, 3000);
  await stream(client, folder);
  client.close();
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
