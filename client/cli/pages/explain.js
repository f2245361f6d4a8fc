// Draws what attn explain found: a lesson, a summary of weights, and why scores are divided by √d; what is there.

const minus = (text) => text.replaceAll("-", "−");
const isNumber = (value) => typeof value === "number";
// What cannot be a number stands as its name, what is excluded as a dash.
const fixed = (value, digits) => (value === null ? "–" : isNumber(value) ? minus(value.toFixed(digits)) : value);
const short = (value) => (isNumber(value) ? minus(String(Number(value.toPrecision(4)))) : fixed(value, 0));
const factor = (value) => (value < 0 ? `(${short(value)})` : short(value));
const range = (count) => [...Array(count).keys()];

// Two digits where they say all there is; else four, or two again where there are more than `roomy` columns.
function digitsOf(rows, roomy = 12) {
  const numbers = rows.flat().filter(isNumber);
  const plain = numbers.every((v) => Math.abs(v * 100 - Math.round(v * 100)) < 1e-4);
  return plain || rows[0].length > roomy ? 2 : 4;
}

// One line at the foot of the window that says what the cell under the mouse, or with the focus, is made of.
const readout = {
  title: el("span", {class: "what"}),
  text: el("span", {class: "how"}),
  kept: null,
  show(cell) {
    this.title.textContent = cell.title;
    this.text.textContent = cell.text;
    this.element.hidden = false;
  },
  keep(cell) {
    this.kept = cell;
    this.show(cell);
  },
  // Back to the cell with the focus.
  back() {
    if (this.kept)
      this.show(this.kept);
    else
      this.element.hidden = true;
  },
};
readout.element = el("div", {class: "readout", role: "status", hidden: ""}, readout.title, readout.text);

// Moves the place (row, column) as a key says; nothing for other keys.
function moved(key, [row, column], rows, columns, ctrl) {
  switch (key) {
    case "ArrowUp":
      return [Math.max(row - 1, 0), column];
    case "ArrowDown":
      return [Math.min(row + 1, rows - 1), column];
    case "ArrowLeft":
      return [row, Math.max(column - 1, 0)];
    case "ArrowRight":
      return [row, Math.min(column + 1, columns - 1)];
    case "Home":
      return [ctrl ? 0 : row, 0];
    case "End":
      return [ctrl ? rows - 1 : row, columns - 1];
    case "PageUp":
      return [0, column];
    case "PageDown":
      return [rows - 1, column];
    default:
      return null;
  }
}

// A table of numbers as a grid with one stop for the Tab key and arrow keys within. describe(row, column) gives title
// and text of the readout; chosen(row, column) is told where the focus or the mouse is. Numbers are shaded by their
// size, and in a compact grid the shade stands for the number.
function numberGrid({
  name,
  label,
  rows,
  columns,
  values,
  describe,
  chosen,
  without = () => false,
  compact = false,
  digits = null,
  signed = false
}) {
  const most = Math.max(...values.flat().filter(isNumber).map(Math.abs), 1e-300);
  const places = digits ?? digitsOf(values);
  const cells = values.map((line, r) => line.map((value, c) => {
    const text = fixed(value, places);
    const kind = value === null || without(r, c) ? "excluded" : signed && value < 0 ? "below" : "above";
    const cell =
        el("td", {
          role: "gridcell",
          tabindex: -1,
          class: kind,
          "data-row": r,
          "data-column": c,
          "data-value": JSON.stringify(value)
        },
           compact ? "" : text);
    if (isNumber(value)) cell.style.setProperty("--share", `${(Math.abs(value) / most * 100).toFixed(1)}%`);
    if (compact)
      cell.setAttribute("aria-label", short(value));
    else if (value === null)
      cell.setAttribute("aria-label", "excluded");
    return cell;
  }));
  const head = el("tr", {}, el("td", {}), columns.map((words) => el("th", {scope: "col"}, words)));
  const table = el(
      "table", {role: "grid", class: compact ? "numbers compact" : "numbers", "data-grid": name, "aria-label": label},
      compact ? [] : el("thead", {}, head),
      el("tbody", {}, cells.map((line, r) => el("tr", {}, el("th", {scope: "row"}, rows[r]), line))));
  let stop = cells[0]?.[0];
  if (stop) stop.tabIndex = 0;
  const placeOf = (cell) => [Number(cell.dataset.row), Number(cell.dataset.column)];
  const cellOf = (event) => event.target.closest("td[role=gridcell]");
  table.addEventListener("focusin", (event) => {
    const cell = cellOf(event);
    if (!cell) return;
    stop.tabIndex = -1;
    stop = cell;
    stop.tabIndex = 0;
    readout.keep(describe(...placeOf(cell)));
    chosen?.(...placeOf(cell));
  });
  table.addEventListener("keydown", (event) => {
    const cell = cellOf(event);
    const to = cell && moved(event.key, placeOf(cell), cells.length, cells[0].length, event.ctrlKey);
    if (!to) return;
    event.preventDefault();
    cells[to[0]][to[1]].focus();
  });
  table.addEventListener("mouseover", (event) => {
    const cell = cellOf(event);
    if (cell) readout.show(describe(...placeOf(cell)));
  });
  table.addEventListener("mouseleave", () => readout.back());
  return table;
}

const figure = (caption, ...content) =>
    el("figure", {}, caption ? el("figcaption", {}, caption) : [], el("div", {class: "scroll"}, content));
const section = (title, words, ...content) =>
    el("section", {}, el("h2", {}, title), words ? el("p", {class: "words"}, words) : [], content.flat(2));

// --- The lesson

const kVectorShown = 64;  // numbers of a vector, as shades
const kVectorSpelt = 8;   // numbers of a vector, in digits

function drawLesson(lesson) {
  const {heads, queries, keys} = lesson;
  const queryNames = queries.map((query) => query.name), keyNames = keys.map((key) => key.name);
  const many = heads.length > 1;
  const root = Math.sqrt(lesson.d_k);
  const spelt = [];  // redraw the arithmetic of the chosen row
  const place = {head: lesson.head, row: lesson.row};
  const ofHead = (head) => (many ? `, head ${head.head}` : "");

  const choose = (h) => (r, c) => {
    place.head = h;
    place.row = r;
    for (const draw of spelt) draw();
    for (const row of main.querySelectorAll("tr.chosen")) row.classList.remove("chosen");
    for (const table of main.querySelectorAll("table[data-by=query]")) {
      table.tBodies[0].rows[r]?.classList.add("chosen");
    }
  };
  // Of long vectors a list shows the first terms, and the readout all.
  const products = (left, right, whole) => {
    const terms = left.map((value, n) => `${factor(value)}·${factor(right[n])}`);
    return (whole || terms.length <= kVectorSpelt ? terms : [...terms.slice(0, kVectorSpelt / 2), "…"]).join(" + ");
  };
  const scoreText = (head, r, j, digits, whole) => lesson.rotary ?
      `${fixed(head.dot[r][j], digits)}, of query and key as the rotary embedding turned them` :
      `${products(head.query[r], head.key[j], whole)} = ${fixed(head.dot[r][j], digits)}`;
  const excludedText = "excluded: this key takes no part";

  // Grids of [row, key] of every head, and the arithmetic of the chosen row below.
  function step(name, values, describe, signed) {
    const digits = digitsOf(heads.flatMap((head) => head[values]));
    const textOf = (head, r, j, whole) =>
        (head.dot[r][j] === null ? excludedText : describe(head, r, j, digits, whole));
    const grids = heads.map((head, h) => {
      const table = numberGrid({
        name: `${values}-${head.head}`,
        label: `${name}${ofHead(head)}: a row for each query, a column for each key`,
        rows: queryNames,
        columns: keyNames,
        values: head[values],
        digits,
        signed,
        chosen: choose(h),
        without: (r, j) => head.dot[r][j] === null,
        describe: (r, j) =>
            ({title: `${name} of ${queryNames[r]} for ${keyNames[j]}${ofHead(head)}`, text: textOf(head, r, j, true)})
      });
      table.dataset.by = "query";
      return figure(many ? `head ${head.head}` : "", table);
    });
    const list = el("dl", {class: "spelt", "data-spelt": values});
    spelt.push(() => {
      const head = heads[place.head];
      list.replaceChildren(
          el("dt", {class: "whose"}, `for ${queryNames[place.row]}${ofHead(head)}`),
          ...keys.flatMap((key, j) => [el("dt", {}, key.name), el("dd", {}, textOf(head, place.row, j, false))]));
    });
    return [el("div", {class: "heads"}, grids), list];
  }

  main.append(
      el("header", {}, el("h1", {}, "Attention, step by step"),
         el("p", {class: "words"}, "Each token asks with its query, is found by its key, and hands on its value. ",
            "Point at a number, or walk through them with Tab and the arrow keys, to see what it is made of. ",
            `Computed by ${lesson.server} in float64.`),
         lesson.keys_in_all > keys.length ?
             el("p", {class: "words"},
                `Shown are the ${keys.length} of ${lesson.keys_in_all} keys with the largest weights.`) :
             []));

  // What each token brings.
  const vectors = (name, words, names, values, head) => {
    const width = values[0].length, compact = width > kVectorSpelt;
    return el(
        "div", {}, el("h3", {}, words),
        figure("", numberGrid({
                 name: `${name}-${head.head}`,
                 label: `${words}${ofHead(head)}`,
                 compact,
                 signed: true,
                 rows: names,
                 columns: range(width).map((n) => n + 1),
                 digits: digitsOf(values, 4),
                 values: values.map((vector) => vector.slice(0, compact ? kVectorShown : width)),
                 describe: (r, n) => ({
                   title: `${name} of ${names[r]}, number ${n + 1} of ${width}${ofHead(head)}`,
                   text: short(values[r][n])
                 })
               })),
        width > kVectorShown ? el("p", {class: "words"}, `the first ${kVectorShown} of ${width} numbers`) : []);
  };
  main.append(section(
      "What each token brings", "",
      heads.map(
          (head) => el(
              "div", {class: "heads head"},
              many ?
                  el("h3", {class: "of-head"},
                     `head ${head.head}${head.kv_head === head.head ? "" : `, with keys and values ${head.kv_head}`}`) :
                                                                      [],
              vectors("query", "Queries: what it looks for", queryNames, head.query, head),
              vectors("key", "Keys: what it offers", keyNames, head.key, head),
              vectors("value", "Values: what it hands on", keyNames, head.value, head)))));

  main.append(section(
      "1. Score", "Query times key, number by number, added up: how well a key fits what the query looks for.",
      step("score", "dot", scoreText, true)));

  const how = lesson.scale_given ? ` · ${factor(lesson.scale)}` : ` / ${short(root)}`;
  main.append(section(
      "2. Scale",
      lesson.scale_given ? `Each score times ${short(lesson.scale)}.` :
                           `Divided by √d_k = √${lesson.d_k} = ${
                               short(root)}, so that scores do not grow with the length of the vectors.`,
      step(
          "scaled score", "scaled",
          (head, r, j, digits) => `${fixed(head.dot[r][j], digits)}${how} = ${fixed(head.scaled[r][j], digits)}`,
          true)));
  let logits = "scaled";
  for (const [values, title, words] of [
           ["capped", "Soft cap", "cap · tanh(score / cap)"], ["biased", "Bias", "added to the score"]]) {
    if (!heads[0][values]) continue;
    const before = logits;
    main.append(section(
        title, words,
        step(
            title.toLowerCase(), values,
            (head, r, j, digits) => `${fixed(head[before][r][j], digits)} becomes ${fixed(head[values][r][j], digits)}`,
            true)));
    logits = values;
  }

  // e to the power of each, relative to a row's largest where that is far from 0: e^100 is no number for paper.
  const partial = keys.length < lesson.keys_in_all;
  const powers = (head, r) => {
    const all = head[logits][r].filter(isNumber), largest = Math.max(...all);
    const shift = Math.abs(largest) > 10 ? largest : 0;
    const sum = all.reduce(
        (total, logit) => total + Math.exp(logit - shift), isNumber(head.sink) ? Math.exp(head.sink - shift) : 0);
    return {shift, sum};
  };
  const sinkWords = heads.some((head) => head.sink !== undefined) ? " A sink counts in the sum and has no value." : "";
  main.append(section(
      "3. Softmax",
      `e to the power of each score, as a share of the row's sum: large scores win, all get something.${sinkWords}`,
      step("weight", "weights", (head, r, j, digits) => {
        const {shift, sum} = powers(head, r), logit = head[logits][r][j] - shift;
        const power = `e^${logit < 0 ? `(${fixed(logit, 4)})` : fixed(logit, 4)} = ${fixed(Math.exp(logit), 4)}`;
        return partial ?
            `${power}, as a share of all ${lesson.keys_in_all} keys = ${fixed(head.weights[r][j], digits)}` :
            `${power}; ${fixed(Math.exp(logit), 4)} / ${fixed(sum, 4)} = ${fixed(head.weights[r][j], digits)}`;
      }, false)));

  // The weighted sum.
  const width = heads[0].mixed[0].length, shown = Math.min(width, kVectorShown), wide = width > kVectorSpelt;
  const sumText = (head, r, c) => {
    const parts = range(keys.length).filter((j) => head.dot[r][j] !== null);
    const terms = parts.map((j) => `${fixed(head.weights[r][j], 4)}·${factor(head.value[j][c])}`);
    return `${terms.join(" + ") || "nothing"}${partial ? " + …" : ""} = ${fixed(head.mixed[r][c], 4)}`;
  };
  const sums = heads.map((head, h) => {
    const table = numberGrid({
      name: `mixed-${head.head}`,
      label: `weighted sums${ofHead(head)}`,
      rows: queryNames,
      compact: wide,
      signed: true,
      columns: range(shown).map((n) => n + 1),
      values: head.mixed.map((row) => row.slice(0, shown)),
      digits: 4,
      chosen: choose(h),
      describe: (r, c) => ({title: `number ${c + 1} of ${queryNames[r]}${ofHead(head)}`, text: sumText(head, r, c)})
    });
    table.dataset.by = "query";
    return figure(many ? `head ${head.head}` : "", table);
  });
  const sumList = el("dl", {class: "spelt", "data-spelt": "mixed"});
  spelt.push(() => {
    const head = heads[place.head];
    sumList.replaceChildren(
        el("dt", {class: "whose"}, `for ${queryNames[place.row]}${ofHead(head)}`),
        ...range(Math.min(width, kVectorSpelt))
            .flatMap((c) => [el("dt", {}, `number ${c + 1}`), el("dd", {}, sumText(head, place.row, c))]),
        ...(wide ? [el("dt", {}, "…"), el("dd", {}, `${width} numbers in all`)] : []));
  });
  const change = el("div", {class: "change"});
  spelt.push(() => {
    const query = queries[place.row], first = kVectorSpelt;
    const line = (when, vector) =>
        el("tr", {}, el("th", {scope: "row"}, `${query.name} ${when}`),
           vector.slice(0, first).map((value) => el("td", {"data-value": JSON.stringify(value)}, fixed(value, 4))),
           vector.length > first ? el("td", {}, "…") : []);
    change.replaceChildren(
        el("div", {class: "scroll"},
           el("table", {},
              el("tbody", {}, query.before ? line("before", query.before) : [], line("after", query.after)))));
  });
  main.append(section(
      "4. Weighted sum", "The values, mixed by the weights: what the token knows afterwards.",
      el("div", {class: "heads"}, sums), sumList, change,
      lesson.output_projection ?
          el("p", {class: "words"}, "W_O turns the heads' sums, side by side, into the output.") :
          many ? el("p", {class: "words"}, `Before and after in head ${heads[lesson.head].head}.`) :
                 []));
  for (const draw of spelt) draw();
}

// --- The summary

const kShades = {
  // from no weight to the most
  light: ["#ffffff", "#c6dbef", "#6baed6", "#2171b5", "#08306b"],
  dark: ["#0f1419", "#143a5e", "#1f6fb2", "#6cb6ff", "#f0f8ff"],
};

const kDecades = 4;  // of weights have shades of their own; less is the lightest, none is the colour of the page

function shareOf(value, most) {
  return value > 0 ? Math.max(1 + Math.log10(value / most) / kDecades, .04) : 0;
}

function shadeOf(share, shades) {
  const at = Math.min(Math.max(share, 0), 1) * (shades.length - 1), low = Math.min(Math.floor(at), shades.length - 2);
  const part = (colour, n) => parseInt(colour.slice(1 + 2 * n, 3 + 2 * n), 16);
  return [0, 1, 2].map(
      (n) => Math.round(part(shades[low], n) + (at - low) * (part(shades[low + 1], n) - part(shades[low], n))));
}

// Heat maps are pictures, which do not follow the colours of the page by themselves.
const scheme = matchMedia("(prefers-color-scheme: dark)");
const repaint = [];
let printing = false;
function paintAll() {
  for (const paint of repaint) paint(printing || !scheme.matches ? kShades.light : kShades.dark);
}
scheme.addEventListener("change", paintAll);
addEventListener("beforeprint", () => {
  printing = true;
  paintAll();
});
addEventListener("afterprint", () => {
  printing = false;
  paintAll();
});

function drawSummary(summary) {
  const {heads, cell, rows, keys} = summary;
  const state = {kind: "max", head: summary.head};
  const percent = (share) => `${(share * 100).toFixed(1)} %`;
  const count = (number) => number.toLocaleString("en").replaceAll(",", " ");
  const nameOf = (key) => summary.key_names[key] ?? `key ${key}`;
  const cellRows = heads[0]?.heat.max.length ?? 0, cellColumns = heads[0]?.heat.max[0]?.length ?? 0;
  const mostOf = (kind) => Math.max(...heads.flatMap((head) => head.heat[kind].flat()), 1e-300);
  const most = {max: mostOf("max"), mean: mostOf("mean")};
  const span = (what, first, end) => (end - first > 1 ? `${what}s ${first} to ${end - 1}` : `${what} ${first}`);

  main.append(
      el("header", {}, el("h1", {}, "Where the weights are"),
         el("p", {class: "words"},
            `${count(rows)} rows over ${count(keys)} keys, ${heads.length} ${
                heads.length === 1 ? "head" : "heads"}, computed by ${summary.server}.`)));
  if (cellRows === 0 || cellColumns === 0) {
    main.append(el("p", {}, "There are no weights."));
    return;
  }

  const choice = (name, options, current, picked) =>
      el("fieldset", {class: "choice"}, el("legend", {}, name), options.map(([value, words]) => {
        const input = el("input", {type: "radio", name, value});
        input.checked = value === current;
        input.addEventListener("change", () => picked(value));
        return el("label", {}, input, words);
      }));

  const maps = heads.map((head) => {
    const canvas = el("canvas", {
      class: "heat",
      tabindex: 0,
      role: "application",
      "data-head": head.head,
      width: cellColumns,
      height: cellRows,
      "aria-label": `heat map of head ${head.head}: rows down, keys across; arrow keys walk through its cells`
    });
    canvas.style.aspectRatio = `${cellColumns} / ${cellRows}`;
    const cursor = el("div", {class: "cursor"});
    let place = [0, 0];
    const describe = ([r, c]) => ({
      title: `head ${head.head}, ${span("row", r * cell, Math.min((r + 1) * cell, rows))}, ${
          span("key", c * cell, Math.min((c + 1) * cell, keys))}`,
      text: cell === 1 ? `weight ${short(head.heat.max[r][c])}` :
                         `largest weight ${short(head.heat.max[r][c])}, mean ${short(head.heat.mean[r][c])}`,
    });
    const mark = () => {
      Object.assign(cursor.style, {
        left: `${place[1] / cellColumns * 100}%`,
        top: `${place[0] / cellRows * 100}%`,
        width: `${100 / cellColumns}%`,
        height: `${100 / cellRows}%`
      });
      readout.keep(describe(place));
    };
    canvas.addEventListener("focus", mark);
    canvas.addEventListener("keydown", (event) => {
      const to = moved(event.key, place, cellRows, cellColumns, event.ctrlKey);
      if (!to) return;
      event.preventDefault();
      place = to;
      mark();
    });
    const under = (event) => {
      const box = canvas.getBoundingClientRect();
      const at = (offset, size, cells) => Math.min(Math.max(Math.floor(offset / size * cells), 0), cells - 1);
      return [at(event.clientY - box.top, box.height, cellRows), at(event.clientX - box.left, box.width, cellColumns)];
    };
    canvas.addEventListener("mousemove", (event) => readout.show(describe(under(event))));
    canvas.addEventListener("mouseleave", () => readout.back());
    canvas.addEventListener("click", (event) => {
      place = under(event);
      mark();
    });
    repaint.push((shades) => {
      const context = canvas.getContext("2d"), picture = context.createImageData(cellColumns, cellRows);
      head.heat[state.kind].flat().forEach(
          (value, n) => picture.data.set([...shadeOf(shareOf(value, most[state.kind]), shades), 255], 4 * n));
      context.putImageData(picture, 0, 0);
    });
    return el(
        "figure", {class: "map"}, el("figcaption", {}, `head ${head.head}`),
        el("div", {class: "frame"}, canvas, cursor),
        el("div", {class: "axis"}, el("span", {}, "key 0"), el("span", {}, `${keys - 1}`)));
  });
  const bar =
      el("canvas",
        {class: "bar", width: 64, height: 1, role: "img", "aria-label": "shades of weights, by their logarithm"});
  const barLeast = el("span", {}), barMiddle = el("span", {}), barEnds = el("span", {});
  repaint.push((shades) => {
    const context = bar.getContext("2d"), picture = context.createImageData(64, 1);
    range(64).forEach((n) => picture.data.set([...shadeOf(n / 63, shades), 255], 4 * n));
    context.putImageData(picture, 0, 0);
    barMiddle.textContent = short(most[state.kind] * 10 ** (-kDecades / 2));
    barLeast.textContent = short(most[state.kind] * 10 ** -kDecades);
    barEnds.textContent = short(most[state.kind]);
  });
  main.append(section(
      "Heat map",
      cell === 1 ? "The weight that each row (down) gives each key (across)." :
                   `Rows go down, keys across. A square stands for ${cell} × ${
                       cell} weights: its colour is the largest of them, or their mean.`,
      cell === 1 ? [] :
                   choice(
                       "A square shows", [["max", "the largest weight"], ["mean", "the mean"]], state.kind,
                       (kind) => {
                         state.kind = kind;
                         paintAll();
                       }),
      el("div", {class: "heads maps"}, maps),
      el("div", {class: "legend"}, bar, el("div", {class: "axis"}, barLeast, barMiddle, barEnds))));

  const numbers = (value, digits) =>
      el("td", {"data-value": JSON.stringify(value)}, value === null ? "none" : fixed(value, digits));
  const table = (name, head, lines) => el(
      "div", {class: "scroll"},
      el("table", {"data-table": name},
         el("thead", {}, el("tr", {}, head.map((words) => el("th", {scope: "col"}, words)))), el("tbody", {}, lines)));
  const line = (first, ...cells) => el("tr", {}, el("th", {scope: "row"}, first), cells);
  main.append(section(
      "Heads",
      "Means over rows. Effective keys: as many as would have this entropy if they shared the weight evenly. " +
          "A sink is a key to which at least half of the rows give a tenth of their weight or more.",
      table(
          "heads",
          ["head", "entropy, bits", "effective keys", "keys for 90 % of the weight", "distance", "sinks", "empty rows"],
          heads.map(
              (head) => line(
                  String(head.head), numbers(head.entropy_bits.mean, 2), numbers(head.effective_keys.mean, 1),
                  numbers(head.keys_for_90_percent.mean, 1), numbers(head.mean_distance, 1),
                  el("td", {}, head.keys.filter((key) => key.sink).map((key) => key.name).join(", ") || "none"),
                  numbers(head.empty_rows, 0))))));

  const detail = el("div", {class: "detail"});
  const drawDetail = () => {
    const head = heads[state.head];
    const filled = head.distances.map((bin) => bin.share > 0);
    const bins = head.distances.slice(filled.indexOf(true), filled.lastIndexOf(true) + 1);
    const widest = Math.max(...head.distances.map((bin) => bin.share), 1e-300);
    const listed = head.rows.filter((row) => row.effective_keys !== null);
    const series = (name, of) => ({name, points: listed.map((row) => [row.row, row[of]])});
    detail.replaceChildren(
        el("h3", {}, "Distance: how far behind the row's position the weighed keys lie"),
        table("distances", ["distance", "share of the weight", ""], bins.map((bin) => {
          const share = el("td", {class: "bar-cell"}, el("div", {class: "share-bar"}));
          share.firstChild.style.width = `${(bin.share / widest * 100).toFixed(2)}%`;
          return line(
              minus(bin.from === bin.to ? `${bin.from}` : `${bin.from} to ${bin.to}`),
              el("td", {"data-value": bin.share}, percent(bin.share)), share);
        })),
        el("h3", {}, "Keys that get most"),
        table(
            "keys", ["key", "mean weight", "rows that give it a tenth or more"],
            head.keys.map(
                (key) => line(
                    key.name + (key.sink ? " (sink)" : ""),
                    el("td", {"data-value": key.mean_weight}, short(key.mean_weight)),
                    el("td", {"data-value": key.rows_with_a_tenth}, percent(key.rows_with_a_tenth))))),
        listed.length > 1 ? el("div", {class: "scroll"}, lineChart({
                                 title: "Keys that a row weighs",
                                 x: {label: "row", log: false},
                                 y: {label: "keys", log: true},
                                 series: [
                                   series("effective keys", "effective_keys"),
                                   series("keys for 90 % of the weight", "keys_for_90_percent")
                                 ]
                               })) :
                            [],
        el("h3", {}, head.rows.length < rows ? `Rows, ${head.rows.length} of ${count(rows)}` : "Rows"),
        el("div", {class: "long"},
           table(
               "rows", ["row", "entropy, bits", "effective keys", "keys for 90 %", "keys with the most weight"],
               head.rows.map(
                   (row) => line(
                       String(row.row), numbers(row.entropy_bits, 2), numbers(row.effective_keys, 1),
                       numbers(row.keys_for_90_percent, 0),
                       el("td", {class: "top"},
                          row.top.map((key) => `${nameOf(key.key)} (${short(key.weight)})`).join(", ") || "none"))))));
  };
  main.append(section(
      "One head", "",
      heads.length > 1 ? choice(
                             "Head", heads.map((head, n) => [String(n), String(head.head)]), String(state.head),
                             (n) => {
                               state.head = Number(n);
                               drawDetail();
                             }) :
                         [],
      detail));
  drawDetail();
  paintAll();
}

// --- Why √d

function drawWhyScale(why) {
  const widths = why.widths;
  const series = (of) => [["unscaled", "as q · k comes"], ["scaled", "divided by √d"]].map(
      ([way, name]) => ({name, points: widths.map((width) => [width.d, width[way][of]])}));
  const chart = (title, label, log, of) =>
      el("div", {class: "scroll drawn"}, lineChart(
          {title, x: {label: "d", log: true}, y: {label, log}, series: series(of), room: 500}));
  const cells = (way) => [["spread", 2], ["entropy_bits", 2], ["effective_keys", 1]].map(
      ([of, digits]) => el("td", {"data-value": way[of]}, fixed(way[of], digits)));
  const heading = ["spread", "entropy, bits", "effective keys"];
  main.append(section(
      "Why √d",
      "The product of two random vectors is a sum of d terms, so its spread (standard deviation) grows by √d. " +
          "Without the scale, long vectors give scores so far apart that softmax leaves one key with all the weight; " +
          "divided by √d they spread by 1 at every width. " +
          `Measured on ${why.rows} queries and ${why.keys} keys of random numbers of variance 1.`,
      el("div", {class: "heads"}, chart("Spread of the scores", "standard deviation", true, "spread"),
         chart("Entropy of the weights", "bits", false, "entropy_bits")),
      el("div", {class: "scroll"},
         el("table", {"data-table": "why_scale"},
            el("thead", {},
               el("tr", {}, el("th", {colspan: 2}), el("th", {colspan: 3, scope: "colgroup"}, "as q · k comes"),
                  el("th", {colspan: 3, scope: "colgroup"}, "divided by √d")),
               el("tr", {}, ["d", "√d", ...heading, ...heading].map((words) => el("th", {scope: "col"}, words)))),
            el("tbody", {},
               widths.map(
                   (width) =>
                       el("tr", {}, el("th", {scope: "row"}, String(width.d)),
                          el("td", {"data-value": width.root_d}, fixed(width.root_d, 2)), cells(width.unscaled),
                          cells(width.scaled))))))));
}

if (data.summary) drawSummary(data.summary);
if (data.lesson) drawLesson(data.lesson);
if (data.why_scale) drawWhyScale(data.why_scale);
main.append(readout.element);
