// A number for people: four digits, with the letters of the powers of a thousand where it is large.
function shortNumber(value) {
  const size = Math.abs(value);
  if (size >= 1e15 || (size > 0 && size < 1e-3)) return value.toExponential(2);
  for (const [letter, unit] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e4]]) {
    const per = letter === "k" ? 1e3 : unit;
    if (size >= unit) return `${Number((value / per).toPrecision(4))}${letter}`;
  }
  return String(Number(value.toPrecision(4)));
}

// From the numbers of one axis: where each lies between 0 and 1, and its ticks. On a log axis only numbers above 0 have
// a place.
function chartScale(values, log) {
  const shown = values.filter((v) => Number.isFinite(v) && (!log || v > 0));
  let low = Math.min(...shown), high = Math.max(...shown);
  if (shown.length === 0) [low, high] = log ? [1, 10] : [0, 1];
  const ticks = [];
  if (log) {
    let first = Math.floor(Math.log10(low) + 1e-9), last = Math.ceil(Math.log10(high) - 1e-9);
    if (first === last) last += 1;
    const step = Math.ceil((last - first) / 8);
    for (let power = first; power <= last; power += step) {
      ticks.push(10 ** power);
      if (last - first <= 2 && power < last) ticks.push(2 * 10 ** power, 5 * 10 ** power);
    }
    return { at: (v) => (Math.log10(v) - first) / (last - first), ticks, has: (v) => Number.isFinite(v) && v > 0 };
  }
  // Lengths are read from zero unless all numbers lie far from it.
  if (low > 0 && low < high / 2) low = 0;
  if (low === high) [low, high] = low === 0 ? [0, 1] : [Math.min(0, low), Math.max(0, high)];
  const rough = (high - low) / 6, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((m) => m * power >= rough);
  const first = Math.floor(low / step + 1e-9), last = Math.ceil(high / step - 1e-9);
  for (let k = first; k <= last; k++) ticks.push(k * step);
  return { at: (v) => (v / step - first) / (last - first), ticks, has: Number.isFinite };
}

// lineChart({title, x: {label, log}, y: {label, log}, series: [{name, points: [[x, y], ...]}], marks: [{x, y, label}]})
// gives an SVG element. Each point carries its numbers as data-x and data-y, and shows them when it is pointed at. A
// point that has no place (null, or not above 0 on a log axis) leaves a gap.
function lineChart({ title, x, y, series, marks = [] }) {
  const width = 720, left = 76, right = 20, top = 44, plot = 300;
  const xs = chartScale([...series.flatMap((s) => s.points.map((p) => p[0])), ...marks.map((m) => m.x)], x.log);
  const ys = chartScale([...series.flatMap((s) => s.points.map((p) => p[1])), ...marks.map((m) => m.y)], y.log);
  const px = (v) => left + xs.at(v) * (width - left - right), py = (v) => top + (1 - ys.at(v)) * plot;
  const hasPlace = ([a, b]) => xs.has(a) && ys.has(b);
  const text = (words, attributes) => svg("text", attributes, words);
  const ground = svg("g", { class: "axes" });
  for (const tick of xs.ticks) {
    ground.append(svg("line", { x1: px(tick), x2: px(tick), y1: top, y2: top + plot }),
      text(shortNumber(tick), { x: px(tick), y: top + plot + 18, "text-anchor": "middle" }));
  }
  for (const tick of ys.ticks) {
    ground.append(svg("line", { x1: left, x2: width - right, y1: py(tick), y2: py(tick) }),
      text(shortNumber(tick), { x: left - 8, y: py(tick) + 4, "text-anchor": "end" }));
  }
  ground.append(text(x.label, { x: (left + width - right) / 2, y: top + plot + 38, "text-anchor": "middle" }),
    text(y.label, { x: 0, y: 0, "text-anchor": "middle", transform: `translate(16 ${top + plot / 2}) rotate(-90)` }));

  const lines = series.map((one, index) => {
    let path = "", drawn = false;
    for (const point of one.points) {
      if (!hasPlace(point)) drawn = false;
      else {
        path += `${drawn ? "L" : "M"}${px(point[0]).toFixed(2)} ${py(point[1]).toFixed(2)}`;
        drawn = true;
      }
    }
    const dots = one.points.filter(hasPlace).map(([a, b]) => svg("circle",
      { cx: px(a).toFixed(2), cy: py(b).toFixed(2), r: one.points.length > 60 ? 1.5 : 3.5, "data-x": a, "data-y": b },
      svg("title", {}, `${one.name}: ${shortNumber(a)}, ${shortNumber(b)}`)));
    return svg("g", { class: `series series${index % 6}`, "data-name": one.name }, svg("path", { d: path }), dots);
  });
  const labels = marks.filter((m) => hasPlace([m.x, m.y])).map((m) => {
    const a = px(m.x), b = py(m.y), end = a > width * 0.7;
    return svg("g", { class: "mark", "data-x": m.x, "data-y": m.y },
      svg("path", { d: `M${a - 5} ${b - 5}L${a + 5} ${b + 5}M${a - 5} ${b + 5}L${a + 5} ${b - 5}` }),
      text(m.label, { x: end ? a - 9 : a + 9, y: b - 7, "text-anchor": end ? "end" : "start" }));
  });

  // The legend fills rows from left to right; a letter is about 7.5 wide.
  const legend = svg("g", { class: "legend" });
  let legendX = left, legendY = top + plot + 62;
  series.forEach((one, index) => {
    const room = 44 + one.name.length * 7.5;
    if (legendX > left && legendX + room > width - right) [legendX, legendY] = [left, legendY + 20];
    legend.append(svg("g", { class: `series series${index % 6}` },
      svg("path", { d: `M${legendX} ${legendY - 4}h24` })), text(one.name, { x: legendX + 30, y: legendY }));
    legendX += room;
  });
  const height = legendY + 14;
  return svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title },
    text(title, { class: "title", x: left, y: 22 }), ground, lines, labels, legend);
}
