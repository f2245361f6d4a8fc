// Draws what attn plan --sweep found: compute and memory over the number of tokens.

const lengths = data.lengths;
const countOf = (value) => (value < 1e5 ? String(value) : value.toExponential(2).replace("e+", "e"));
const pointsOf = (field, per = 1) => lengths.map((length) => [length.tokens, length[field] / per]);
// Figures of one head stand in the charts of one head.
const marksOf = (fields) => data.figures.filter((figure) => figure.heads === 1 && fields.includes(figure.field))
  .map((figure) => ({
    x: figure.tokens,
    y: figure.value,
    label: figure.field.includes("bytes") ? bytesOf(figure.value) : countOf(figure.value),
  }));
const chart = (title, label, series, fields) => el("section", {}, el("div", { class: "scroll" }, lineChart({
  title, x: { label: "tokens", log: true }, y: { label, log: true }, series, marks: marksOf(fields),
})));
const words = (text) => el("p", { class: "words" }, text);

const heads = data.q_heads === data.kv_heads ? `${data.q_heads}` : `${data.q_heads} (keys and values ${data.kv_heads})`;
main.append(el("h1", {}, "What attention costs"),
  words(`Over the number of tokens: ${data.sequences} × ${heads} heads, `
    + `keys of ${data.d_k} and values of ${data.d_v} numbers, ${data.dtype}${data.causal ? ", causal" : ""}, `
    + `${data.layers === 1 ? "one layer" : `${data.layers} layers`}. `
    + `Asked of ${data.server}, which computed nothing. `
    + `A cross is a figure of the lesson, for one head of 128 numbers.`));

const perHead = [
  { name: "scores", points: pointsOf("scores_per_head") },
  { name: "multiply-adds for the scores", points: pointsOf("score_multiply_adds_per_head") },
  { name: "multiply-adds of both products", points: pointsOf("multiply_adds_per_head") },
];
main.append(
  chart("Compute of one head", "scores, multiply-adds", perHead,
    ["scores_per_head", "score_multiply_adds_per_head", "multiply_adds_per_head"]),
  words("Twice the tokens: four times the work. From 4096 tokens to 131,072 it is 1024 times."),
  chart("Memory of one layer", "bytes", [
    { name: "in tiles, all that this server holds", points: pointsOf("memory_bytes") },
    { name: "whole scores, as the naive method holds them", points: pointsOf("naive_score_bytes", data.layers) },
    { name: "whole scores of one head", points: pointsOf("naive_score_bytes_per_head") },
  ], ["naive_score_bytes_per_head"]),
  words("In tiles, scores never exist beyond a tile: memory grows with the tokens, not with their square."),
  chart("Predicted time here", "seconds", [{ name: "all layers", points: pointsOf("predicted_compute_us", 1e6) }], []));

const cell = (value, text) => el("td", { "data-value": JSON.stringify(value) }, text);
const table = (name, head, rows) => el("div", { class: "scroll" }, el("table", { "data-table": name },
  el("thead", {}, el("tr", {}, head.map((label) => el("th", { scope: "col" }, label)))), el("tbody", {}, rows)));
main.append(el("section", {}, el("h2", {}, "In numbers"), table("lengths",
  ["tokens", "scores a head", "multiply-adds", "memory in tiles", "whole scores", "predicted time", "taken"],
  lengths.map((length) => el("tr", {}, el("th", { scope: "row" }, String(length.tokens)),
    cell(length.scores_per_head, countOf(length.scores_per_head)),
    cell(length.multiply_adds, countOf(length.multiply_adds)),
    cell(length.memory_bytes, bytesOf(length.memory_bytes)),
    cell(length.naive_score_bytes, bytesOf(length.naive_score_bytes)),
    cell(length.predicted_compute_us, timeOf(length.predicted_compute_us)),
    cell(length.admitted, length.admitted ? "yes" : "no")))),
  words("Memory in tiles is of one layer; multiply-adds, whole scores and time are of all."),
  ...lengths.filter((length) => !length.admitted).slice(0, 1).map((length) =>
    words(`Why this server would refuse ${length.tokens} tokens: ${length.refusal}`))),
el("section", {}, el("h2", {}, "Figures of the lesson"), table("figures", ["tokens", "value", "exactly", "what"],
  data.figures.map((figure) => el("tr", {}, el("th", { scope: "row" }, String(figure.tokens)),
    cell(figure.value, figure.field.includes("bytes") ? bytesOf(figure.value) : countOf(figure.value)),
    el("td", {}, String(figure.value)), el("td", { class: "what" }, figure.says))))));
