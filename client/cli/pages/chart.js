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

// Bytes and microseconds for people: three digits and a unit.
function bytesOf(value) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  for (; value >= 1024 && unit + 1 < units.length; ++unit) value /= 1024;
  return `${Number(value.toPrecision(3))} ${units[unit]}`;
}

function timeOf(us) {
  for (const [unit, size] of [["h", 3.6e9], ["min", 6e7], ["s", 1e6], ["ms", 1e3]]) {
    if (us >= size) return `${Number((us / size).toPrecision(3))} ${unit}`;
  }
  return `${Number(us.toPrecision(3))} µs`;
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

// Where a mark's words go: the first of four sides on which they lie on no cross and on no words that have a place.
function placeWords(marks, left, right) {
  const taken = marks.map(([a, b]) => [a - 6, b - 6, a + 6, b + 6]);
  return marks.map(([a, b, words]) => {
    const wide = words.length * 7.5;
    // Lines that rise leave room below to the right and above to the left.
    const sides = [[a + 9, b + 18], [a - 9 - wide, b - 7], [a + 9, b - 7], [a - 9 - wide, b + 18]].map(
      ([x, y]) => [x, y - 12, x + wide, y + 3]);
    const free = (box) => box[0] >= left && box[2] <= right && taken.every(
      (other) => box[0] >= other[2] || box[2] <= other[0] || box[1] >= other[3] || box[3] <= other[1]);
    const box = sides.find(free) ?? sides[0];
    taken.push(box);
    return { x: box[0], y: box[3] - 3 };
  });
}

// lineChart({title, x: {label, log}, y: {label, log, show}, series: [{name, points: [[x, y], ...]}],
// marks: [{x, y, label}], room}) gives an SVG element, drawn for `room` pixels, or for what the page has where that is
// less; y.show writes a number of the y axis. Each point carries its numbers as data-x and data-y, and shows them when
// it is pointed at. A point that has no place (null, or not above 0 on a log axis) leaves a gap.
function lineChart({ title, x, y, series, marks = [], room = 720 }) {
  const width = Math.max(320, Math.min(room, main.clientWidth - 32)), left = 76, right = 20, top = 44;
  const plot = width < 600 ? 240 : 300;
  const xs = chartScale([...series.flatMap((s) => s.points.map((p) => p[0])), ...marks.map((m) => m.x)], x.log);
  const ys = chartScale([...series.flatMap((s) => s.points.map((p) => p[1])), ...marks.map((m) => m.y)], y.log);
  const px = (v) => left + xs.at(v) * (width - left - right), py = (v) => top + (1 - ys.at(v)) * plot;
  // On a narrow chart every second number of the x axis, or fewer, so that none lies on the next.
  const every = Math.ceil(xs.ticks.length * 48 / (width - left - right)), show = y.show ?? shortNumber;
  const hasPlace = ([a, b]) => xs.has(a) && ys.has(b);
  const text = (words, attributes) => svg("text", attributes, words);
  const ground = svg("g", { class: "axes" });
  xs.ticks.forEach((tick, index) => {
    ground.append(svg("line", { x1: px(tick), x2: px(tick), y1: top, y2: top + plot }));
    if (index % every !== 0) return;
    ground.append(text(shortNumber(tick), { x: px(tick), y: top + plot + 18, "text-anchor": "middle" }));
  });
  for (const tick of ys.ticks) {
    ground.append(svg("line", { x1: left, x2: width - right, y1: py(tick), y2: py(tick) }),
      text(show(tick), { x: left - 8, y: py(tick) + 4, "text-anchor": "end" }));
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
      svg("title", {}, `${one.name}: ${shortNumber(a)}, ${show(b)}`)));
    return svg("g", { class: `series series${index % 6}`, "data-name": one.name }, svg("path", { d: path }), dots);
  });
  const shown = marks.filter((m) => hasPlace([m.x, m.y]));
  const places = placeWords(shown.map((m) => [px(m.x), py(m.y), m.label]), left, width);
  const labels = shown.map((m, index) => {
    const a = px(m.x), b = py(m.y);
    return svg("g", { class: "mark", "data-x": m.x, "data-y": m.y },
      svg("path", { d: `M${a - 5} ${b - 5}L${a + 5} ${b + 5}M${a - 5} ${b + 5}L${a + 5} ${b - 5}` }),
      text(m.label, places[index]));
  });

  // The legend fills rows from left to right; a letter is about 7.5 wide, here as in placeWords.
  const legend = svg("g", { class: "legend" });
  const legendLeft = width < 600 ? 12 : left;
  let legendX = legendLeft, legendY = top + plot + 62;
  series.forEach((one, index) => {
    const wide = 44 + one.name.length * 7.5;
    if (legendX > legendLeft && legendX + wide > width - right) [legendX, legendY] = [legendLeft, legendY + 20];
    legend.append(svg("g", { class: `series series${index % 6}` },
      svg("path", { d: `M${legendX} ${legendY - 4}h24` })), text(one.name, { x: legendX + 30, y: legendY }));
    legendX += wide;
  });
  const height = legendY + 14;
  // A window that is made narrower scrolls rather than shrink letters by more than a third.
  return svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title,
    style: `min-width: ${Math.floor(width * 0.67)}px; max-width: ${Math.ceil(width * 1.25)}px` },
    text(title, { class: "title", x: left, y: 22 }), ground, lines, labels, legend);
}
