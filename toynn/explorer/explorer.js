// Draws a step of toynn: the graph, memory over time, and every call with its numbers. The data are
// in the element `data`: JSON, by gzip, in base64. All text goes into the page as text nodes: what a
// name says is never markup.

const packed = Uint8Array.from(atob(document.getElementById("data").textContent), (letter) => letter.charCodeAt(0));
const data = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
const tape = data.tapes[0];
const PHASES = { F: "forward", E: "evaluation", B: "backward", U: "update" };
const LANES = [["F", "E"], ["B"], ["U"]];
const LANE_NAMES = ["forward", "backward", "update"];
const UNFOLDED = 40; // a step of at most so many calls is shown unfolded
const ROWS = 48, COLUMNS = 16; // at most so many of a tensor are shown

// -- Words and numbers ------------------------------------------------------------------------------

const count = (n) => n.toLocaleString("en");
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
function scaled(n, units) {
  let k = 0;
  while (n >= 1000 && k < units.length - 1) { n /= 1000; k += 1; }
  return `${k === 0 ? count(n) : n.toFixed(n < 10 ? 2 : n < 100 ? 1 : 0)}\u00a0${units[k]}`;
}
const bytes = (n) => scaled(n, ["B", "kB", "MB", "GB", "TB"]);
const flops = (n) => scaled(n, ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"]);
const time = (s) => scaled(Math.round(s * 1e9), ["ns", "µs", "ms", "s"]);
const shape = (t) => `(${t.shape.join(", ")}${t.shape.length === 1 ? "," : ""})`;
function number(x) { // the shortest decimal that is this float32 and no other
  if (Number.isInteger(x) && Math.abs(x) < 1e7) return Object.is(x, -0) ? "-0" : String(x);
  for (let digits = 5; digits < 9; digits += 1) {
    const text = x.toPrecision(digits);
    if (Math.fround(Number(text)) === x) return String(Number(text));
  }
  return String(Number(x.toPrecision(9)));
}

// -- Elements ---------------------------------------------------------------------------------------

function make(tag, attributes, ...inside) {
  const svg = ["svg", "rect", "line", "path", "text", "g"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...inside.flat().filter((each) => each !== null && each !== undefined));
  return element;
}
const bar = (share, title) => {
  const inner = make("span", { class: "fill" });
  inner.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return make("span", { class: "bar", title, "aria-hidden": "true" }, inner);
};
function table(caption, head, rows, kind) {
  const cell = (tag, value) => make(tag, tag === "th" ? { scope: "col" } : null, value);
  return make("div", { class: "wide", tabindex: 0, role: "region", "aria-label": caption }, make("table", { class: kind },
    make("caption", null, caption),
    make("thead", null, make("tr", null, head.map((each) => cell("th", each)))),
    make("tbody", null, rows.map((row) => make("tr", null, row.map((each) => cell("td", each))))),
  ));
}

// -- The step ---------------------------------------------------------------------------------------

const root = (t) => tape.tensors[t].base ?? t;
const written = (n) => Object.values(n.writes).concat(Object.values(n.saves));
const named = (n) => [...Object.entries(n.writes), ...Object.entries(n.saves), ...Object.entries(n.reads)];
const gradientOf = new Map();
tape.tensors.forEach((t, k) => { if (t.gradient !== undefined) gradientOf.set(t.gradient, k); });
const sectionName = (told, k) => told.sections[k] || (told.sections.length === 1 ? "all calls" : k === 0 ? "before the blocks" : k === told.sections.length - 1 ? "after the blocks" : "between blocks");
const op = (n) => (n.precision && n.precision !== "highest" ? `${n.op} (${n.precision})` : n.op);
const opName = (n) => make("span", { class: "op" }, op(n).split(/(?<=[._])/).flatMap((part) => [make("wbr"), part]));
const where = (n) => [PHASES[n.phase], ...(tape.sections.length > 1 ? [", ", make("span", { class: "name" }, sectionName(tape, n.section))] : [])];
const isCopy = (t) => t.name.endsWith("'");
const seconds = data.seconds || null, bounds = data.bounds || null;
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
const whole = sum(tape.nodes.map((n) => n.flops)), duration = seconds && sum(seconds);

const view = {};
let selected = null;

function tensorButton(t, section) { // without the block's name where the block is around it
  const tensor = tape.tensors[t], label = section ? tensor.name.replace(`${section}.`, "") : tensor.name;
  return make("button", {
    type: "button", class: `tensor ${tensor.role}`, "data-tensor": t, tabindex: -1,
    "aria-label": `tensor ${tensor.name}, ${shape(tensor)}`,
  }, make("span", { class: "name" }, label));
}
function nodeButton(i, words) {
  const n = tape.nodes[i];
  return make("button", { type: "button", class: "link", "data-node": i }, `${i} ${words || op(n)}`);
}

// -- The graph: a row for each section, a lane for each of forward, backward, update ----------------

const lanes = tape.sections.map(() => LANES.map(() => []));
tape.nodes.forEach((n, i) => lanes[n.section][LANES.findIndex((names) => names.includes(n.phase))].push(i));

const cost = (nodes) => sum(nodes.map((i) => (seconds ? seconds[i] : tape.nodes[i].flops)));
const largest = Math.max(...lanes.flat().map(cost));

function summary(section, lane) {
  const nodes = lanes[section][lane];
  if (!nodes.length) return make("span", { class: "sum none" }, "nothing");
  const work = sum(nodes.map((i) => tape.nodes[i].flops));
  const share = largest ? cost(nodes) / largest : 0;
  const told = [plural(nodes.length, "call"), flops(work)];
  if (seconds) told.push(time(sum(nodes.map((i) => seconds[i]))));
  if (lane === 0) {
    const kept = new Set(nodes.flatMap((i) => tape.nodes[i].kept || []));
    const size = sum([...kept].map((t) => tape.tensors[t].bytes));
    if (size) told.push(`keeps ${bytes(size)}`);
  }
  return make("span", { class: "sum" }, make("span", { class: "lane-name" }, LANE_NAMES[lane]), told.join(" · "), bar(share, `${(cost(nodes) / (seconds ? duration : whole) * 100).toFixed(1)}% of the step`));
}

function nodeItem(i) {
  const n = tape.nodes[i];
  const told = [make("span", { class: "number" }, String(i)), opName(n)];
  if (seconds) told.push(make("span", { class: "time" }, time(seconds[i])));
  const label = `call ${i}, ${op(n)}, ${PHASES[n.phase]}, writes ${written(n).map((t) => tape.tensors[t].name).join(", ")}`;
  return make("li", { class: `node ${n.phase}`, "data-item": i },
    make("button", { type: "button", class: "call", "data-node": i, tabindex: -1, "aria-label": label }, told),
    make("span", { class: "writes" }, written(n).map((t) => tensorButton(t, tape.sections[n.section]))));
}

function unfold(section, open) {
  const row = view.rows[section];
  row.classList.toggle("open", open);
  row.firstChild.setAttribute("aria-expanded", String(open));
  const body = row.lastChild;
  body.hidden = !open;
  if (open && !body.firstChild) {
    LANES.forEach((_, lane) => body.append(make("ol", { class: "lane", "aria-label": `${sectionName(tape, section)}, ${LANE_NAMES[lane]}` },
      lanes[section][lane].map(nodeItem))));
  }
  if (!open) body.replaceChildren();
  mark(view.marked);
}

function graph() {
  const rows = view.rows = tape.sections.map((_, k) => make("div", { class: "section", "data-section": k },
    make("button", { type: "button", class: "head", "aria-expanded": "false", "data-head": k },
      make("span", { class: "title name" }, sectionName(tape, k)), LANES.map((_, lane) => summary(k, lane))),
    make("div", { class: "lanes", hidden: true })));
  view.lines = make("svg", { class: "lines", "aria-hidden": "true" });
  view.graph = make("div", { class: "graph", role: "group", "aria-label": "graph of the step; arrow keys move, Enter opens" }, view.lines, rows);
  const all = (open) => rows.forEach((_, k) => unfold(k, open));
  const bar = make("p", { class: "tools" },
    make("button", { type: "button", onclick: () => all(true) }, "unfold all"),
    make("button", { type: "button", onclick: () => all(false) }, "fold all"),
    make("span", { class: "soft" }, "Forward runs down, backward up, then the update. Open a block, point at a tensor, choose a call."));
  if (tape.nodes.length <= UNFOLDED) all(true);
  view.graph.addEventListener("keydown", walk);
  return [bar, make("div", { class: "lane-heads", "aria-hidden": "true" }, make("span"), LANE_NAMES.map((name, k) => make("span", null, `${name} ${["↓", "↑", ""][k]}`))), view.graph];
}

function walk(event) { // arrow keys go through what is shown; Right and Left unfold, fold, and go to tensors
  const here = event.target.closest("button");
  if (!here) return;
  const main = [...view.graph.querySelectorAll(".head, .call")];
  const own = here.closest(".node") ? [...here.closest(".node").querySelectorAll("button")] : [here];
  let to = null;
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    to = main[main.indexOf(own[0]) + (event.key === "ArrowDown" ? 1 : -1)];
  } else if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
    const right = event.key === "ArrowRight";
    if (here.classList.contains("head")) unfold(Number(here.dataset.head), right);
    else to = own[own.indexOf(here) + (right ? 1 : -1)];
  } else if (event.key === "Home") to = main[0];
  else if (event.key === "End") to = main[main.length - 1];
  else return;
  event.preventDefault();
  if (to) to.focus();
}

// -- Pointing at a tensor: who writes and who reads it ----------------------------------------------

function place(i) { // what stands for a call: itself, or the folded section that it is in
  return view.graph.querySelector(`[data-item="${i}"]`) || view.rows[tape.nodes[i].section].firstChild;
}
function mark(t) {
  view.marked = t;
  view.graph.querySelectorAll(".writer, .reader, .same").forEach((each) => each.classList.remove("writer", "reader", "same"));
  view.lines.replaceChildren();
  if (t === null || t === undefined || view.graph.hidden) return;
  const tensor = tape.tensors[root(t)];
  view.graph.querySelectorAll(".tensor").forEach((each) => each.classList.toggle("same", root(Number(each.dataset.tensor)) === root(t)));
  const box = view.graph.getBoundingClientRect();
  const middle = (element) => {
    const own = element.getBoundingClientRect();
    return [own.left - box.left + own.width / 2, own.top - box.top + own.height / 2, own.width / 2];
  };
  tensor.writers.forEach((w) => place(w).classList.add("writer"));
  tensor.readers.forEach((r) => place(r).classList.add("reader"));
  const from = tensor.writers.length ? place(tensor.writers[0]) : null;
  if (from) {
    const [x, y] = middle(from);
    new Set(tensor.readers.map(place)).forEach((to) => {
      if (to === from) return;
      const [u, v] = middle(to);
      const bend = Math.abs(u - x) < 20 ? Math.min(60, 14 + Math.abs(v - y) / 6) : 0;
      view.lines.append(make("path", { d: `M ${x} ${y} C ${x - bend * 3} ${y + (v - y) / 3}, ${u - bend * 3} ${v - (v - y) / 3}, ${u} ${v}` }));
    });
  }
}
function said(t) {
  const tensor = tape.tensors[root(t)];
  const calls = (list) => (list.length ? list.slice(0, 6).map((i) => `${i} ${tape.nodes[i].op}`).join(", ") + (list.length > 6 ? `, and ${list.length - 6} more` : "") : "none");
  const lines = [`${tensor.name} ${shape(tensor)} ${tensor.dtype}, ${bytes(tensor.bytes)}`,
    tensor.writers.length ? `written by ${calls(tensor.writers)}` : `not written in the step: ${tensor.role === "input" ? "an input" : tensor.role}`,
    `read by ${calls(tensor.readers)}`];
  if (tensor.gradient !== undefined) lines.push(`its gradient: ${tape.tensors[tensor.gradient].name}`);
  if (gradientOf.has(root(t))) lines.push(`it is the gradient of ${tape.tensors[gradientOf.get(root(t))].name}`);
  lines.push(kept(tensor));
  return lines;
}
function kept(tensor) {
  if (tensor.first === undefined) return "kept by the session, from step to step";
  const first = Math.max(0, tensor.first), last = Math.min(tensor.last, tape.nodes.length - 1);
  const share = ((last - first + 1) / tape.nodes.length * 100).toFixed(0);
  return `live from call ${first} to ${last}: ${plural(last - first + 1, "call")}, ${share}% of the step`;
}
function hint(element) {
  const t = element && element.dataset.tensor;
  view.hint.hidden = t === undefined || t === null;
  if (view.hint.hidden) return;
  view.hint.replaceChildren(...said(Number(t)).map((line) => make("div", null, line)));
  const own = element.getBoundingClientRect(), wide = view.hint.offsetWidth, high = view.hint.offsetHeight;
  view.hint.style.left = `${Math.max(8, Math.min(own.left, innerWidth - wide - 8))}px`;
  view.hint.style.top = `${own.bottom + high + 8 > innerHeight ? Math.max(8, own.top - high - 6) : own.bottom + 6}px`;
}

// -- Details of what is chosen ----------------------------------------------------------------------

function details(kind, k) {
  selected = { kind, k };
  document.querySelectorAll(".chosen").forEach((each) => each.classList.remove("chosen"));
  document.querySelectorAll(kind === "node" ? `.call[data-node="${k}"]` : `.tensor[data-tensor="${k}"]`).forEach((each) => each.classList.add("chosen"));
  view.details.replaceChildren(
    make("button", { type: "button", class: "close", "aria-label": "close the details", onclick: () => document.body.classList.remove("detailed") }, "×"),
    ...(kind === "node" ? ofNode(k) : ofTensor(k)));
  document.body.classList.add("detailed");
  view.details.scrollTop = 0;
  const code = view.details.querySelector(".code"), line = view.details.querySelector(".code .on");
  if (code && line) code.scrollTop = line.offsetTop - code.offsetTop - 30;
}

function lessons(n, kernel) { // where more is to be read; links if the page knows the site
  const known = [...(kernel.about ? [`docs/kernels/${n.op.split(".")[0]}.md`] : []), ...(data.lessons[kernel.path] || [])];
  const linked = (said) => data.docs ? make("a", { href: said.replace(/:.*/, "").replace("docs", data.docs).replace(".md", ".html"), target: "_blank", rel: "noopener" }, said) : said;
  return known.length ? make("p", null, "More: ", ...known.flatMap((said, k) => [k ? "; " : "", linked(said)])) : null;
}

function formula(n) { // all formulas of the kernel's file; those of what this call writes are marked
  const kernel = data.kernels[n.op], lines = data.files[kernel.path].split("\n"), own = new Set(kernel.formula);
  return make("pre", { class: "formula" }, kernel.formulas.map((k) => make("span", { class: own.has(k) ? "line on" : "line" }, `${lines[k].replace(/^ {4}/, "")}\n`)));
}
const settings = (n) => Object.entries({ ...n.sizes, ...n.options }).map(([name, value]) => `${name}=${value}`).join("  ");
function ofNode(i) {
  const n = tape.nodes[i], kernel = data.kernels[n.op], text = data.files[kernel.path].split("\n");
  const figures = [["work", n.flops ? `${n.at_most ? "at most " : ""}${flops(n.flops)}` : "none"], ["moved", bytes(n.bytes)],
    ["intensity", `${(n.flops / n.bytes).toFixed(n.flops < n.bytes ? 2 : 1)} FLOP a byte`]];
  if (seconds) figures.push(["measured", time(seconds[i])]);
  if (bounds) figures.push(["roofline", `${time(bounds[i][0])} at least, by ${bounds[i][1]}`]);
  if (seconds && bounds) figures.push(["share of the roofline", `${(bounds[i][0] / seconds[i] * 100).toFixed(0)}%`]);
  const part = (title, group) => Object.entries(group).map(([name, t]) => [make("code", null, name), title, tensorButton(t), make("span", { class: "shape" }, shape(tape.tensors[t]))]);
  const found = [
    make("h2", null, `${i} `, opName(n)),
    make("p", { class: "soft" }, ...where(n), `, call ${i + 1} of ${tape.nodes.length}`),
    make("h3", null, "Formula"),
    formula(n),
    make("p", { class: "soft" }, `Marked: what this call writes. Its sizes and options: `, make("span", { class: "mono" }, settings(n))),
    lessons(n, kernel),
    make("dl", { class: "figures" }, figures.flatMap(([name, value]) => [make("dt", null, name), make("dd", null, value)])),
  ];
  if (seconds && bounds) found.push(bar(bounds[i][0] / seconds[i], "least possible time as a share of the measured time"));
  found.push(table("Tensors", ["kernel's name", "", "tensor", "shape"],
    [...part("reads", n.reads), ...part("writes", n.writes), ...part("saves", n.saves)], "tensors"));
  if (n.kept) found.push(make("h3", null, "Saved for the backward pass"), make("p", { class: "chips" }, n.kept.map((t) => tensorButton(t))));
  if (n.accumulate) found.push(make("p", { class: "soft" }, n.accumulate === "always" ? "Adds to what an earlier call of this step wrote." : "Overwrites the gradient in the first micro-batch, adds to it in later ones."));
  const own = new Set([...kernel.code, ...kernel.formula]);
  found.push(make("h3", null, "Source"), make("p", { class: "soft mono" }, `${kernel.path}, lines ${kernel.code[0] + 1} to ${kernel.code[kernel.code.length - 1] + 1}`),
    make("pre", { class: "code", tabindex: 0, "aria-label": `source of ${n.op}` }, text.map((line, k) => make("span", { class: own.has(k) ? "line on" : "line", "data-line": k + 1 }, `${line}\n`))));
  if (data.values) found.splice(2, 0, make("p", null, make("button", { type: "button", onclick: () => { show("step"); go(view.steps.findIndex((s) => s.node === i)); } }, "show its numbers")));
  return found.filter((each) => each);
}

function ofTensor(t) {
  const tensor = tape.tensors[t], base = tape.tensors[root(t)];
  const rows = (list) => (list.length ? make("p", { class: "chips" }, list.map((i) => nodeButton(i))) : make("p", { class: "soft" }, "none in this step"));
  const found = [
    make("h2", null, make("span", { class: "name" }, tensor.name)),
    make("p", { class: "soft" }, `${shape(tensor)} ${tensor.dtype}, ${bytes(tensor.bytes)}, ${tensor.role}`),
    make("p", null, kept(base)),
  ];
  if (t !== root(t) && tensor.bytes === base.bytes && !tensor.first_element) found.push(make("p", null, "another shape of ", tensorButton(root(t))));
  else if (t !== root(t)) found.push(make("p", null, "a part of ", tensorButton(root(t)), ` from element ${count(tensor.first_element)} on`));
  if (base.buffer) found.push(make("p", null, `stored in ${base.buffer} from byte ${count(tensor.offset)} on`));
  if (base.gradient !== undefined) found.push(make("h3", null, "Gradient"), make("p", { class: "chips" }, tensorButton(base.gradient)));
  if (gradientOf.has(root(t))) found.push(make("h3", null, "Gradient of"), make("p", { class: "chips" }, tensorButton(gradientOf.get(root(t)))));
  found.push(make("h3", null, "Written by"), rows(base.writers), make("h3", null, "Read by"), rows(base.readers));
  return found;
}

// -- Memory: the arena over time --------------------------------------------------------------------

function kindOf(told, tensor) {
  if (tensor.role === "input") return "input";
  if (isCopy(tensor)) return "copy";
  const first = told.nodes[(tensor.writers || [])[0] ?? 0];
  return first.phase === "B" || first.phase === "U" ? "gradient" : "activation";
}
const KINDS = { activation: "activation", copy: "recomputed", gradient: "gradient of an activation", input: "input" };
const peakSaid = (told) => {
  const n = told.nodes[told.arena.peak];
  return `call ${told.arena.peak}, ${n.op}, ${PHASES[n.phase]}, ${sectionName(told, n.section)}`;
};

function memory() {
  const most = Math.max(...data.tapes.map((each) => each.arena.bytes || 0), 1);
  const picture = make("div", { class: "arena" }), facts = make("div", { "aria-live": "polite" });
  let shown = 0, alike = data.tapes.length > 1;
  const draw = () => {
    const told = data.tapes[shown], calls = told.nodes.length, top = alike ? most : told.arena.bytes || 1;
    const wide = Math.max(280, picture.clientWidth || 900), high = Math.max(260, Math.min(480, innerHeight - 260)), left = 62, below = 26;
    const x = (call) => left + (wide - left - 4) * call / Math.max(calls, 1), y = (at) => (high - below - 12) * (1 - at / top) + 12;
    const boxes = told.tensors.map((tensor, k) => [tensor, k]).filter(([tensor]) => tensor.buffer === "arena" && tensor.base === undefined && tensor.first !== undefined);
    const svg = make("svg", { viewBox: `0 0 ${wide} ${high}`, width: wide, height: high, role: "img", "aria-label": `memory of the arena over ${plural(calls, "call")}; peak at ${peakSaid(told)}` });
    [0, 0.25, 0.5, 0.75, 1].forEach((part) => svg.append(make("line", { class: "grid", x1: left, x2: wide, y1: y(top * part), y2: y(top * part) }), make("text", { x: left - 6, y: y(top * part) + 4, class: "end" }, bytes(Math.round(top * part)))));
    boxes.forEach(([tensor, k]) => {
      const first = Math.max(0, tensor.first), last = Math.min(tensor.last + 1, calls);
      const length = Math.max(0.8, x(last) - x(first)), height = Math.max(0.8, y(tensor.offset) - y(tensor.offset + tensor.bytes));
      const edged = length > 4 && height > 4 ? " edged" : "";
      svg.append(make("rect", { class: `box ${kindOf(told, tensor)}${edged}`, "data-box": k, x: x(first), width: length, y: y(tensor.offset + tensor.bytes), height }));
    });
    const ends = told.nodes.flatMap((n, i) => (i && n.phase !== told.nodes[i - 1].phase ? [i] : []));
    [0, ...ends].forEach((i) => svg.append(make("line", { class: "edge", x1: x(i), x2: x(i), y1: 4, y2: high - below + 8 }), make("text", { x: x(i) + 4, y: high - 6 }, PHASES[told.nodes[i].phase])));
    const at = x(told.arena.peak + 0.5);
    svg.append(make("line", { class: "peak", x1: at, x2: at, y1: 4, y2: high - below + 4 }),
      make("text", { class: `peak-name ${at + 230 < wide ? "" : at > 236 ? "end" : "middle"}`, x: at + 230 < wide ? at + 6 : at > 236 ? at - 6 : wide / 2, y: 16 }, `peak: ${bytes(told.arena.live[told.arena.peak])} at call ${told.arena.peak}`));
    const own = (event) => { const box = event.target.closest && event.target.closest("[data-box]"); return box ? told.tensors[Number(box.dataset.box)] : null; };
    svg.addEventListener("pointermove", (event) => {
      const tensor = own(event);
      view.hint.hidden = !tensor;
      if (!tensor) return;
      const first = Math.max(0, tensor.first);
      view.hint.replaceChildren(...[`${tensor.name}, ${bytes(tensor.bytes)}: ${KINDS[kindOf(told, tensor)]}`, `from byte ${count(tensor.offset)} on`, `live from call ${first} (${told.nodes[Math.min(first, calls - 1)].op}) to ${Math.min(tensor.last, calls - 1)}`].map((line) => make("div", null, line)));
      view.hint.style.left = `${Math.min(event.clientX + 12, innerWidth - view.hint.offsetWidth - 8)}px`;
      view.hint.style.top = `${Math.min(event.clientY + 12, innerHeight - view.hint.offsetHeight - 8)}px`;
    });
    svg.addEventListener("pointerleave", () => { view.hint.hidden = true; });
    svg.addEventListener("click", (event) => { const box = event.target.closest("[data-box]"); if (box && shown === 0) details("tensor", Number(box.dataset.box)); });
    picture.replaceChildren(svg);
    const there = boxes.filter(([tensor]) => tensor.first <= told.arena.peak && told.arena.peak <= tensor.last).map(([tensor]) => tensor).sort((a, b) => b.bytes - a.bytes);
    facts.replaceChildren(
      make("p", { class: "peak-said" }, make("b", null, `${bytes(told.arena.live[told.arena.peak])} are live at the peak: `), peakSaid(told), `. The arena has ${bytes(told.arena.bytes)}.`),
      table("The largest tensors at the peak", ["tensor", "size", "live from", "to", "kind"], there.slice(0, 12).map((tensor) => [make("span", { class: "name" }, tensor.name), bytes(tensor.bytes), count(Math.max(0, tensor.first)), count(Math.min(tensor.last, calls - 1)), KINDS[kindOf(told, tensor)]]), "peak-table"));
  };
  view.redraw = draw;
  const choice = data.tapes.length > 1 ? make("fieldset", { class: "choice" }, make("legend", null, "recorded"),
    data.tapes.map((told, k) => make("label", null, make("input", { type: "radio", name: "tape", value: k, checked: k === 0, onchange: () => { shown = k; draw(); } }), make("span", { class: "name" }, told.name))),
    make("label", { class: "alike" }, make("input", { type: "checkbox", checked: true, onchange: (event) => { alike = event.target.checked; draw(); } }), "one scale")) : null;
  const legend = make("p", { class: "legend" }, Object.entries(KINDS).map(([kind, name]) => make("span", null, make("span", { class: `swatch ${kind}` }), name)));
  const work = (told) => told.flops ?? sum(told.nodes.map((n) => n.flops));
  const compared = table("Compared", ["", "calls", "work", "arena", "peak of all memory", "arena's peak at"], data.tapes.map((told) => [make("span", { class: "name" }, told.name), count(told.nodes.length), flops(work(told)), bytes(told.arena.bytes || 0), bytes(told.memory.peak), peakSaid(told)]), "compared");
  const whole = table("Memory of all tapes of the session", ["weights", "moments", "gradients", "activations", "mapped", "prepacked", "peak"], [["weights", "moments", "gradients", "activations", "mapped", "prepacked", "peak"].map((name) => bytes(tape.memory[name]))], "whole");
  return [choice, legend, picture, facts, compared, whole];
}

// -- Step by step: the numbers before and after each call -------------------------------------------

const decoded = new Map();
function content(version) {
  if (!decoded.has(version)) {
    const [t, text] = data.values.versions[version];
    const raw = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    decoded.set(version, tape.tensors[t].dtype === "i32" ? new Int32Array(raw.buffer) : new Float32Array(raw.buffer));
  }
  return decoded.get(version);
}
function numbersOf(t, version) { // of a part: from its first element on; its rows are as long as the whole tensor's
  const tensor = tape.tensors[t], all = content(version);
  return tensor.base === undefined ? all : all.subarray(tensor.first_element);
}
function heatOf(numbers) { // colours a cell: blue below 0, red above, as strong as its share of the largest
  const most = numbers.reduce((top, x) => (Number.isFinite(x) ? Math.max(top, Math.abs(x)) : top), 0);
  return (cell, x) => {
    if (most > 0 && Number.isFinite(x)) cell.style.backgroundColor = `rgba(${x < 0 ? "40, 100, 220" : "225, 70, 40"}, ${(Math.abs(x) / most * 0.55).toFixed(3)})`;
    return cell;
  };
}
function attention(n, step) { // p = exp(s - lse) of a small step: the matrix that the kernel never stores
  const z = n.sizes, o = n.options, part = (name) => numbersOf(n.reads[name], step.before[root(n.reads[name])]);
  const told = o.cap || ["first", "sinks", "z"].some((name) => n.reads[name] !== undefined) || z.T > ROWS ? null : step.after[root(n.saves.lse ?? n.writes.lse)];
  if (told === null || told === undefined) return [];
  const q = part("q"), k = part("k"), lse = content(told), heads = [];
  for (let h = 0; h < z.H; h += 1) {
    const rows = [make("tr", null, [make("th"), ...Array.from({ length: z.T }, (_, j) => make("th", { scope: "col" }, String(j)))])];
    for (let i = 0; i < z.T; i += 1) {
      const cells = [make("th", { scope: "row" }, String(i))];
      for (let j = 0; j < z.T; j += 1) {
        const hidden = (z.causal && j > i) || (z.window && (j <= i - z.window || (!z.causal && j >= i + z.window)));
        let s = 0;
        for (let d = 0; d < z.D; d += 1) s += q[i * z.ldq + h * z.D + d] * k[j * z.ldk + Math.floor(h * z.KV / z.H) * z.D + d];
        const p = hidden ? 0 : Math.exp(o.scale * s - lse[h * z.T + i]);
        cells.push(heatOf([1])(make("td", null, hidden ? "" : p.toFixed(3)), p));
      }
      rows.push(make("tr", null, cells));
    }
    heads.push(make("div", null, make("h4", null, `head ${h}`), make("div", { class: "wide", tabindex: 0, role: "region", "aria-label": `weights of head ${h}` }, make("table", { class: "numbers p" }, make("tbody", null, rows)))));
  }
  return [make("section", { class: "change" }, make("h3", null, "p = exp(s - lse): how much row i takes from row j (first sequence; computed by this page)"), make("div", { class: "two" }, heads))];
}
function grid(t, version, before) {
  const tensor = tape.tensors[t], all = numbersOf(t, version), old = before === null ? null : numbersOf(t, before);
  const columns = tensor.shape.length ? tensor.shape[tensor.shape.length - 1] : 1, rows = Math.max(1, Math.ceil(all.length / columns));
  const shown = Math.min(columns, COLUMNS), heat = heatOf(tensor.dtype === "i32" ? [] : all);
  const body = [make("tr", null, [make("th"), ...Array.from({ length: shown }, (_, c) => make("th", { scope: "col" }, String(c)))])];
  for (let r = 0; r < Math.min(rows, ROWS); r += 1) {
    const cells = [make("th", { scope: "row" }, String(r))];
    for (let c = 0; c < shown && r * columns + c < all.length; c += 1) {
      const k = r * columns + c, changed = old && !Object.is(old[k], all[k]);
      cells.push(heat(make("td", { class: changed ? "changed" : null }, number(all[k])), all[k]));
    }
    body.push(make("tr", null, cells));
  }
  const cut = rows > ROWS || columns > COLUMNS ? make("p", { class: "soft" }, `the first ${Math.min(rows, ROWS)} of ${plural(rows, "row")}, ${Math.min(columns, COLUMNS)} of ${plural(columns, "column")}`) : null;
  return make("div", { class: "wide", tabindex: 0, role: "region", "aria-label": `numbers of ${tensor.name}` }, make("table", { class: "numbers" }, make("tbody", null, body)), cut);
}
function go(k) {
  view.at = Math.max(0, Math.min(view.steps.length - 1, k));
  const step = view.steps[view.at], n = tape.nodes[step.node];
  view.slider.value = view.at;
  view.slider.setAttribute("aria-valuetext", `call ${step.node}, ${n.op}`);
  const changes = (group, title) => Object.entries(group).map(([name, t]) => {
    const before = step.before[root(t)] ?? null, after = step.after[root(t)];
    const now = make("div", null, make("h4", null, before === after ? "as before" : "after"), grid(t, after, before));
    return make("section", { class: "change" }, make("h3", null, `${title} `, make("code", null, name), " ", tensorButton(t), ` ${shape(tape.tensors[t])}`),
      make("div", { class: "two" }, before === null || before === after ? null : make("div", null, make("h4", null, "before"), grid(t, before, null)), now));
  });
  const reads = Object.entries(n.reads).map(([name, t]) => make("section", { class: "change" }, make("h3", null, "reads ", make("code", null, name), " ", tensorButton(t), ` ${shape(tape.tensors[t])}`), grid(t, step.before[root(t)], null)));
  view.now.replaceChildren(
    make("h2", null, nodeButton(step.node, op(n))),
    make("p", { class: "soft" }, ...where(n), `, ${view.at + 1} of ${plural(view.steps.length, "call")}`),
    formula(n),
    ...reads, ...(n.op === "attention.forward" ? attention(n, step) : []), ...changes(n.writes, "writes"), ...changes(n.saves, "saves"));
  if (document.body.classList.contains("detailed") && selected && selected.kind === "node" && selected.k !== step.node) details("node", step.node);
}
function follow(t, index) {
  const tensor = tape.tensors[t], g = tensor.gradient;
  const flat = index.reduce((at, k, axis) => at * tensor.shape[axis] + k, 0);
  const name = `${tensor.name}[${index.join(",")}]`, rows = [];
  view.steps.forEach((step, k) => {
    const n = tape.nodes[step.node];
    [[t, "value"], [g, "gradient"]].forEach(([which, what]) => {
      if (which === undefined) return;
      const before = step.before[which], after = step.after[which];
      const there = before ?? after;
      if (there === undefined) return;
      const old = before === undefined ? null : content(before)[flat], now = after === undefined ? null : content(after)[flat];
      const does = now === null || Object.is(old, now) ? "reads" : "changes";
      rows.push([make("button", { type: "button", class: "link", onclick: () => go(k) }, `${step.node} ${op(n)}`), does, what, number(old ?? now), does === "changes" ? number(now) : ""]);
    });
  });
  view.followed.replaceChildren(make("p", { class: "soft" }, rows.length ? `${name}: it or its gradient is read or changed ${plural(rows.length, "time")} in this step` : `no call reads or writes ${name}`),
    table(`${name} through the step`, ["call", "", "which", "before", "after"], rows, "follow"), ...madeOf(t, g, index, flat), ...update(t, flat));
}
function madeOf(t, g, index, flat) { // the gradient of an element: a finite difference, and the sum of a product that makes it
  const step = view.steps.find((each) => g !== undefined && each.after[g] !== undefined), parts = [];
  if (!step) return parts;
  const n = tape.nodes[step.node], value = content(step.after[g])[flat], same = data.follow && data.follow.tensor === t && data.follow.index.join() === index.join();
  if (same && data.follow.difference !== undefined) parts.push(make("p", null, `Its gradient is ${number(value)}. `, make("b", null, `A finite difference says ${data.follow.difference.toPrecision(5)}`), `, +/- ${data.follow.error.toExponential(0)}: from the loss, a float32, with this one weight moved by one and two steps of ${data.follow.step} to each side.`));
  if (n.op !== "matmul.backward_weight" || index.length !== 2) return parts;
  const [row, column] = index, dy = numbersOf(n.reads.dy, step.before[root(n.reads.dy)]), x = numbersOf(n.reads.x, step.before[root(n.reads.x)]);
  const across = (side) => tape.tensors[n.reads[side]].shape.at(-1), terms = [];
  for (let m = 0; m < Math.min(n.sizes.M, ROWS); m += 1) terms.push([String(m), number(dy[m * across("dy") + row]), number(x[m * across("x") + column]), (dy[m * across("dy") + row] * x[m * across("x") + column]).toPrecision(5)]);
  let total = 0;
  for (let m = 0; m < n.sizes.M; m += 1) total += dy[m * across("dy") + row] * x[m * across("x") + column];
  parts.push(table(`call ${step.node}: dw[${index.join(",")}] = sum over m of dy[m,${row}] x[m,${column}] = ${total.toPrecision(6)}`, ["m", `dy[m,${row}]`, `x[m,${column}]`, "product"], terms, "terms"));
  return parts;
}
function update(t, flat) { // AdamW's row of an element
  const step = view.steps.find((each) => tape.nodes[each.node].op === "adamw.step" && tape.nodes[each.node].writes.w === t), hp = data.values.hp;
  if (!step || !hp) return [];
  const n = tape.nodes[step.node], was = (name) => content(step.before[root(n.writes[name])])[flat], is = (name) => content(step.after[root(n.writes[name])])[flat];
  const g = content(step.before[root(n.reads.g)])[flat], scale = content(step.before[root(n.reads.scale)])[0];
  const move = (hp.c1 * is("m")) / (Math.sqrt(hp.c2 * is("v")) + hp.eps);
  const line = (name, how, value) => [name, how, typeof value === "number" ? String(Number(value.toPrecision(6))) : value];
  return [table(`call ${step.node}: AdamW's row`, ["", "formula", "number"], [line("g'", "g scale", g * scale), line("m", `beta1 m + (1 - beta1) g', from ${number(was("m"))}`, is("m")), line("v", `beta2 v + (1 - beta2) g'^2, from ${number(was("v"))}`, is("v")),
    line("direction", "c1 m / (sqrt(c2 v) + eps)", move), line("decay", "w lr weight_decay", was("w") * hp.lr * hp.weight_decay), line("w", `w - decay - lr direction, from ${number(was("w"))}`, is("w"))], "adamw")];
}
function stepByStep() {
  view.steps = data.values.nodes;
  view.slider = make("input", { type: "range", min: 0, max: view.steps.length - 1, value: 0, "aria-label": "call", oninput: (event) => go(Number(event.target.value)) });
  view.now = make("div", { class: "now", "aria-live": "polite" });
  view.followed = make("div");
  const button = (words, to) => make("button", { type: "button", onclick: () => go(to()) }, words);
  const weights = tape.tensors.flatMap((tensor, k) => (tensor.role === "parameter" && tensor.base === undefined ? [k] : []));
  const select = make("select", { "aria-label": "weight" }, weights.map((k) => make("option", { value: k }, `${tape.tensors[k].name} ${shape(tape.tensors[k])}`)));
  const index = make("input", { type: "text", "aria-label": "index, such as 3,5", value: "" });
  const chosen = () => {
    const t = Number(select.value), lengths = tape.tensors[t].shape, given = index.value.split(",").map((word) => Number(word.trim()));
    const right = given.length === lengths.length && given.every((k, axis) => Number.isInteger(k) && k >= 0 && k < lengths[axis]);
    index.setAttribute("aria-invalid", String(!right));
    if (right) follow(t, given);
  };
  const first = () => { index.value = tape.tensors[Number(select.value)].shape.map(() => 0).join(","); chosen(); };
  select.addEventListener("change", first);
  index.addEventListener("input", chosen);
  const panel = [
    make("div", { class: "tools step" }, button("|◀ first", () => 0), button("◀ back", () => view.at - 1), button("forward ▶", () => view.at + 1), button("last ▶|", () => view.steps.length - 1), view.slider,
      make("span", { class: "soft" }, "arrow keys left and right step")),
    make("details", { class: "followed", open: true }, make("summary", null, "Follow one weight"), make("p", { class: "tools" }, select, index), view.followed),
    view.now,
  ];
  if (weights.length) {
    if (data.follow) { select.value = String(data.follow.tensor); index.value = data.follow.index.join(","); follow(data.follow.tensor, data.follow.index); } else first();
  }
  go(0);
  return panel;
}

// -- The same as a table ----------------------------------------------------------------------------

function everything() {
  const list = (group) => Object.values(group).map((t) => tape.tensors[t].name).join(", ");
  const head = ["call", "", "section", "reads", "writes", "saves", "work", "moved"].concat(seconds ? ["time"] : []);
  return [table(`${plural(tape.nodes.length, "call")} in order`, head, tape.nodes.map((n, i) => [nodeButton(i), PHASES[n.phase], sectionName(tape, n.section), list(n.reads), list(n.writes), list(n.saves), flops(n.flops), bytes(n.bytes)].concat(seconds ? [time(seconds[i])] : [])), "all")];
}

// -- The page ---------------------------------------------------------------------------------------

const TABS = [["graph", "Graph", graph], ["memory", "Memory", memory]].concat(data.values ? [["step", "Step by step", stepByStep]] : [], [["table", "Table", everything]]);

function show(name) {
  TABS.forEach(([id, , fill]) => {
    const chosen = id === name, panel = view.panels[id], tab = view.tabs[id];
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    panel.hidden = !chosen;
    if (chosen && !panel.firstChild) panel.append(...fill().filter((each) => each));
  });
  view.open = name;
  view.hint.hidden = true;
  if (name === "memory") view.redraw();
}
function enter(name) { // a click on a tab: keys are for its view from now on
  show(name);
  view.panels[name].focus({ preventScroll: true });
}

function start() {
  view.hint = make("div", { class: "hint", role: "tooltip", hidden: true });
  view.details = make("aside", { class: "details", "aria-label": "details", tabindex: -1, "aria-live": "polite" });
  view.tabs = {}; view.panels = {};
  TABS.forEach(([id, title]) => {
    view.tabs[id] = make("button", { type: "button", role: "tab", id: `tab-${id}`, "aria-controls": `panel-${id}`, onclick: () => enter(id) }, title);
    view.panels[id] = make("div", { role: "tabpanel", id: `panel-${id}`, class: `panel ${id}`, "aria-labelledby": `tab-${id}`, tabindex: -1, hidden: true });
  });
  const of = (letter) => tape.nodes.filter((n) => n.phase === letter).length;
  const counts = Object.entries(PHASES).filter(([letter]) => of(letter)).map(([letter, name]) => `${name} ${count(of(letter))}`).join(", ");
  const told = data.values || {}, before = told.loss && told.loss[0] !== null, after = before && told.loss[1] !== null;
  const numbers = [told.text !== undefined ? `input: ${told.text}` : data.values ? "input: random numbers" : null,
    before ? `loss ${told.loss[0].toPrecision(6)}${after ? `, and ${told.loss[1].toPrecision(6)} after the update` : ""}` : null,
    told.hp ? Object.entries(told.hp).map(([name, value]) => `${name} ${Number(value.toPrecision(5))}`).join(", ") : null].filter((each) => each);
  const facts = [`${plural(tape.nodes.length, "kernel call")} (${counts})`, flops(whole), `arena ${bytes(tape.arena.bytes || 0)}`].concat(seconds ? [time(duration)] : []);
  const list = make("div", { role: "tablist", "aria-label": "views" }, Object.values(view.tabs));
  list.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!move) return;
    const names = TABS.map(([id]) => id), to = names[(names.indexOf(view.open) + move + names.length) % names.length];
    event.stopPropagation();
    show(to);
    view.tabs[to].focus();
  });
  document.body.append(
    make("header", null, make("h1", { class: "name" }, data.title), make("p", { class: "soft" }, facts.join(" · ")), numbers.length ? make("p", { class: "soft input" }, numbers.join(" · ")) : null, list),
    make("main", null, make("div", { class: "panels" }, Object.values(view.panels)), view.details), view.hint);
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.head !== undefined) unfold(Number(button.dataset.head), button.getAttribute("aria-expanded") !== "true");
    else if (button.dataset.node !== undefined) details("node", Number(button.dataset.node));
    else if (button.dataset.tensor !== undefined) { details("tensor", Number(button.dataset.tensor)); hint(null); }
  });
  const point = (event) => {
    const button = event.target.closest && event.target.closest("[data-tensor]");
    hint(button);
    if (view.open === "graph" && view.graph) mark(button ? Number(button.dataset.tensor) : null);
  };
  document.addEventListener("pointerover", point);
  document.addEventListener("focusin", point);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { document.body.classList.remove("detailed"); hint(null); }
    if (view.open === "step" && !event.target.closest("input, select, [role=tablist]")) {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (move) { go(view.at + move); event.preventDefault(); }
    }
  });
  addEventListener("resize", () => { if (view.open === "memory") view.redraw(); });
  const [wanted, ...more] = location.hash.slice(1).split("&"); // #memory, #step, #graph&unfold=2&node=7
  show(TABS.some(([id]) => id === wanted) ? wanted : data.follow ? "step" : "graph");
  more.forEach((word) => {
    const [name, k] = [word.split("=")[0], Number(word.split("=")[1])];
    if (name === "unfold" && view.rows && view.rows[k]) unfold(k, true);
    if (name === "node" && tape.nodes[k]) details("node", k);
    if (name === "call" && view.steps) go(k);
  });
}
start();
globalThis.explorer = { data, tape, view, go, content }; // for the console
