// Draws what `attn bench --json` prints. Every number shown is one of `data`'s, or rounded from it.
const points = data.points;
const isOpen = "rate" in points[0];
const axisName = isOpen ? "rate, requests/s" : "callers";
const placeOf = (point) => (isOpen ? point.rate : point.concurrency);
const nameOf = (point) => `${isOpen ? "rate" : "callers"} ${shortNumber(placeOf(point))}`;
const measured = points.filter((point) => point.latency_us);
const scrolled = (child) => el("div", { class: "scroll" }, child);

function section(title, ...children) {
  main.append(el("section", {}, el("h2", {}, title), ...children));
}

// Rows of cells; a number is written by its column's function of `shows`, or short, and carries itself as data-value.
function table(head, rows, shows = {}) {
  const cell = (value, column) => (typeof value === "number"
    ? el("td", { "data-value": value }, (shows[head[column]] ?? shortNumber)(value)) : el("td", {}, value ?? "–"));
  return scrolled(el("table", {}, el("thead", {}, el("tr", {}, head.map((text) => el("th", {}, text)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map(cell))))));
}

main.append(el("h1", {}, "attn bench"));
const asked = data.workload.map((item) => `${item.shape} ${item.dtype}`);
main.append(el("p", {}, `${asked.slice(0, 4).join("; ")}${asked.length > 4 ? ` and ${asked.length - 4} more` : ""}. `
  + `${data.call} calls to ${data.server}, `
  + (isOpen ? `${points[0].arrivals} arrivals: latency counts from the moment each request was due.`
    : "each caller asks again when it is answered.")));
if (data.search && data.search.rate === 0) {
  main.append(el("p", { class: "bad" }, "No rate that was tried keeps p99 under ",
    el("b", { "data-value": data.search.slo_us }, timeOf(data.search.slo_us)), "."));
} else if (data.search) {
  main.append(el("p", { class: "found" }, "p99 stays under ",
    el("b", { "data-value": data.search.slo_us }, timeOf(data.search.slo_us)), " up to ",
    el("b", { "data-value": data.search.rate }, `${shortNumber(data.search.rate)} requests/s`),
    data.search.limited_by ? `; ${data.search.limited_by}` : "", "."));
}
for (const point of points) {
  if (point.client.bottleneck) main.append(el("p", { class: "bad" }, point.client.bottleneck));
  if (!point.stable) {
    main.append(el("p", { class: "bad" }, `Not stable at ${nameOf(point)}: ${point.unstable_because.join(", ")} `
      + `(margin ${point.margin_percent} %).`));
  }
}

const names = ["p50", "p90", "p99", "p99.9", "p99.99", "max", "mean"];
const times = (columns) => Object.fromEntries(columns.map((name) => [name, timeOf]));
section("Latency", table([isOpen ? "rate" : "callers", "requests/s", ...names],
  points.map((point) => [placeOf(point), point.requests_per_second, ...names.map((name) => point.latency_us?.[name])]),
  times(names)));

if (measured.length > 1) {
  section(isOpen ? "Latency over rate" : "Latency over callers", scrolled(lineChart({
    title: "Latency", x: { label: axisName }, y: { label: "latency", log: true, show: timeOf },
    series: ["p50", "p90", "p99", "p99.9"].map((name) => (
      { name, points: measured.map((point) => [placeOf(point), point.latency_us[name]]) })),
    marks: data.search && data.search.rate > 0 ? [{ x: data.search.rate, y: data.search.slo_us, label: "found" }] : [],
  })), scrolled(lineChart({
    title: "Throughput", x: { label: axisName }, y: { label: "requests/s" },
    series: [{ name: "answered", points: points.map((point) => [placeOf(point), point.requests_per_second]) }],
  })));
}

// At most six lines: the first, the last and what lies evenly between.
const few = measured.length <= 6 ? measured
  : [0, 1, 2, 3, 4, 5].map((k) => measured[Math.round(k * (measured.length - 1) / 5)]);
if (few.length > 0) {
  section("Percentiles", el("p", {}, "To the right, each power of ten is one more nine: 100 is p99, 1000 is p99.9."),
    scrolled(lineChart({
      title: "Latency by percentile", x: { label: "one in so many requests is later", log: true },
      y: { label: "latency", log: true, show: timeOf },
      series: few.map((point) => ({ name: nameOf(point),
        points: point.percentiles.map((one) => [100 / (100 - one.percent), one.us]) })),
    })));
  section("Timeline", ...[["p99_us", "p99", true, timeOf],
    ["requests_per_second", "requests/s", false, shortNumber]].map(([field, label, log, show]) => scrolled(lineChart({
      title: label, x: { label: "seconds" }, y: { label, log, show },
      series: few.map((point) => ({ name: nameOf(point),
        points: point.timeline.map((step) => [step.second, step[field] ?? null]) })),
    }))));
}

// Bars of one length for the whole, parts by their share.
function breakdown(point) {
  const parts = Object.entries(point.split_us_mean), whole = parts.reduce((sum, [, us]) => sum + us, 0) || 1;
  let left = 0;
  const bar = svg("svg", { class: "bar", viewBox: "0 0 600 20", role: "img", "aria-label": nameOf(point) },
    parts.map(([name, us], index) => {
      const piece = svg("rect", { class: `series${index}`, x: left, y: 0, width: us / whole * 600, height: 20,
        "data-value": us }, svg("title", {}, `${name}: ${timeOf(us)}`));
      left += us / whole * 600;
      return piece;
    }));
  return [placeOf(point), ...parts.map(([, us]) => us), bar];
}

if (measured.length > 0) {
  const parts = Object.keys(measured[0].split_us_mean);
  section("Where the time goes, on average", el("p", { class: "legend" }, parts.map((name, index) =>
    el("span", { class: `key series${index}` }, name))),
  table([isOpen ? "rate" : "callers", ...parts, ""], measured.map(breakdown), times(parts)));
}

section("Throughput and errors", table(
  [isOpen ? "rate" : "callers", "answered", "refused", "failed", "unsent", "tokens/s", "GF/s", "bytes/s",
    "attn late p99", "attn CPU", "server CPU", "server memory"],
  points.map((point) => [placeOf(point), point.requests, point.refused, point.failed, point.unsent,
    point.tokens_per_second, point.gflops_per_second, point.bytes_per_second, point.client.lateness_us.p99,
    point.client.cpu, point.server?.cpu, point.server?.resident_bytes]),
  { "attn late p99": timeOf, "bytes/s": bytesOf, "server memory": bytesOf }));
