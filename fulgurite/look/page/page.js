"use strict";
// The page of a compilation: the data of fulgurite/look/dump.py, drawn by d3, laid out by dagre.
const VIEWS = ["graph", "passes", "fusion", "egraph", "memory", "kernels", "timeline", "flame"];
const TITLES = { graph: "Graph", passes: "Passes", fusion: "Fusion", egraph: "E-graph",
  memory: "Memory", kernels: "Kernels", timeline: "Time line", flame: "Flame graph" };
const MOST_SHOWN = 200; // nodes that are laid out at once
const FEW = 120; // ops up to which a graph is shown whole
const READERS = 24, DRAWN = 6; // of a box with more readers the first few edges are drawn
const MOST_HITS = 50; // of a search that are listed
const PART = 60; // ops of a line that are one box, where the line has many
let D, where = {};
const $ = (id) => document.getElementById(id);

function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key.startsWith("aria-")) made.setAttribute(key, String(value));
    else if (value !== false && value != null) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat().filter((c) => c != null));
  return made;
}
const bytes = (n) => n >= 2 ** 30 ? (n / 2 ** 30).toFixed(1) + " GiB" : n >= 2 ** 20
  ? (n / 2 ** 20).toFixed(1) + " MiB" : n >= 1024 ? (n / 1024).toFixed(1) + " KiB" : n + " B";
const time = (ns) => ns >= 1e9 ? (ns / 1e9).toFixed(2) + " s" : ns >= 1e6
  ? (ns / 1e6).toFixed(2) + " ms" : ns >= 1e3 ? (ns / 1e3).toFixed(1) + " us" : ns.toFixed(0) + " ns";
const short = (file) => file.split("/").slice(-1)[0];
const place = (id) => { // of a model its node, whose name may be that of another
  const { node, line, file } = D.lines[id];
  return node ? `${line}. ${node}` : `${short(file)}:${line}`;
};

async function unpacked() {
  const raw = Uint8Array.from(atob($("data").textContent.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// --- where we are: in the address, so that links lead there ---------------------------------------

function hashOf(place) {
  return new URLSearchParams(Object.entries(place).filter(([, v]) => v != null)).toString();
}
function go(place) {
  location.hash = hashOf(place);
}
function arrived() {
  where = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  if (!VIEWS.includes(where.view)) where.view = "graph";
  for (const tab of $("tabs").children)
    tab.setAttribute("aria-selected", tab.dataset.view === where.view);
  $("view").setAttribute("aria-label", TITLES[where.view]);
  $("view").replaceChildren();
  $("details").hidden = true;
  SHOW[where.view]($("view"));
  document.documentElement.dataset.drawn = location.hash;
}
function within(text, list) {  // a place in a list: of the address, which anybody may have written
  return Math.max(0, Math.min(Math.trunc(Number(text)) || 0, list.length - 1));
}
function details(title, ...children) {
  $("details").hidden = false;
  $("details").replaceChildren(el("h2", {}, title), ...children.flat().filter(Boolean));
}
function lineList(ids) {
  return el("ul", {}, ids.map((i) => el("li", {}, place(i), D.lines[i].path ? ` in ${D.lines[i].path}` : "",
    el("br"), el("code", {}, D.lines[i].code))));
}

// --- graph: modules and lines that open when they are clicked -------------------------------------

const open = new Set(), apart = new Set();
let keys = [], closed = null; // every box that can be open, and what is open at first: for addresses
function opened() { // what is open, as an address has it; null: as at first
  const places = (set) => [...set].map((k) => keys.indexOf(k)).filter((i) => i >= 0).sort((a, b) => a - b)
    .map((i) => i.toString(36)).join(".");
  const now = places(open) + (apart.size ? "-" + places(apart) : "");
  if (closed === null) closed = now;
  return now === closed ? null : now;
}
function reopen(text) {
  const [boxes, layers] = (text + "-").split("-");
  for (const [set, some] of [[open, boxes], [apart, layers]]) {
    set.clear();
    for (const part of some.split(".").filter(Boolean)) {
      const key = keys[parseInt(part, 36)];
      if (key != null) set.add(key);
    }
  }
  if (!open.size) open.add("");
}
function allKeys() {
  const found = new Set([""]);
  for (const node of D.graph.nodes) {
    let key = "";
    for (const part of groupsOf(node)) found.add((key += "/" + part));
  }
  for (const kin of alike().values()) found.add(kin[0] + " and its equals");
  return [...found];
}
const lineOf = (node) => [...node.path, node.lines.length ? place(node.lines[0]) : "inputs and constants"];
function groupsOf(node) {
  return node.part ? [...lineOf(node), node.part] : lineOf(node);
}
const twins = new Map(); // ops by line and place in it: those of equal layers have the same place
function divide() { // lines of many ops, such as those of a long loop, into parts
  for (const [line, nodes] of d3.groups(D.graph.nodes, (n) => "/" + lineOf(n).join("/"))) {
    const parts = Math.ceil(nodes.length / PART);
    nodes.forEach((n, i) => {
      if (nodes.length > 2 * PART) n.part = `${lineOf(n).pop()} part ${Math.floor(i / PART) + 1} of ${parts}`;
      twins.set(line + (n.part ? "/" + n.part : "") + "#" + (n.at = i), n);
    });
  }
}
function alike() { // equal layers: siblings whose names differ in a number and whose ops are the same
  const ops = new Map(), merged = new Map(), kin = new Map();
  for (const node of D.graph.nodes) {
    let key = "";
    for (const part of node.path) {
      key += "/" + part;
      if (!ops.has(key)) ops.set(key, new Map());
      ops.get(key).set(node.op, (ops.get(key).get(node.op) || 0) + 1);
    }
  }
  for (const [key, counts] of ops) {
    const match = /^(.*?)(\d+)$/.exec(key);
    if (!match) continue;
    const same = match[1] + JSON.stringify([...counts].sort());
    if (!kin.has(same)) kin.set(same, []);
    kin.get(same).push(key);
  }
  for (const keys of kin.values()) if (keys.length > 1) for (const key of keys) merged.set(key, keys);
  return merged;
}
function standsFor(node, merged) { // the group that a node is shown as, or the node itself
  let key = "";
  for (const part of groupsOf(node)) {
    key += "/" + part;
    const kin = merged.get(key);
    if (kin && !apart.has(kin[0])) {
      if (!open.has(kin[0] + " and its equals")) return { id: kin[0] + " and its equals", kin };
      key = kin[0];
    }
    if (!open.has(key)) return { id: key };
  }
  const twin = twins.get(key + "#" + node.at), first = twin && twin.op === node.op ? twin : node;
  return { id: first.id, node: first };
}
const isModule = (item) => item.nodes.every((n) => n.path.length >= item.id.split("/").length - 1);
function drawGraph(root) {
  if (where.open != null) reopen(where.open);
  const merged = alike(), shown = new Map(), at = new Map();
  if (!open.size && D.graph.nodes.length <= FEW)
    for (const node of D.graph.nodes) {
      let key = "";
      for (const part of groupsOf(node)) open.add((key += "/" + part));
    }
  for (let round = 0; round < 3; round++) { // open what is alone
    shown.clear();
    for (const node of D.graph.nodes) {
      const found = standsFor(node, merged);
      if (!shown.has(found.id)) shown.set(found.id, { ...found, nodes: [] });
      shown.get(found.id).nodes.push(node);
      at.set(node.id, found.id);
    }
    if (shown.size > 8 || round === 2) break;
    const modules = [...shown.values()].filter((s) => !s.node && !s.kin && isModule(s));
    if (!modules.length) break;
    for (const s of modules) open.add(s.id);
  }
  const edges = new Map(), layout = new dagre.graphlib.Graph().setGraph({ ranksep: 34, nodesep: 16 });
  layout.setDefaultEdgeLabel(() => ({}));
  const items = [...shown.values()].slice(0, MOST_SHOWN), kept = new Set(items.map((s) => s.id));
  for (const node of D.graph.nodes) for (const source of node.src) { // the way of the first edge counts
    const a = at.get(source), b = at.get(node.id);
    if (a !== b && kept.has(a) && kept.has(b) && !edges.has(`${b}>${a}`)) edges.set(`${a}>${b}`, [String(a), String(b)]);
  }
  where.open = opened(); // the address says what is open, without a step of its own
  history.replaceState(null, "", "#" + hashOf(where));
  const readers = d3.group([...edges.values()], ([a]) => a), sources = d3.rollup([...edges.values()], (e) => e.length, ([, b]) => b);
  for (const item of items) {
    const read = (readers.get(String(item.id)) || []).length;
    item.label = item.node ? item.node.op : item.kin
      ? `${item.kin[0].split("/").pop()} … ${item.kin[item.kin.length - 1].split("/").pop()}`
      : String(item.id).split("/").pop();
    const equal = item.kin ? item.kin.length : item.node ? item.nodes.length : 1;
    item.more = (item.node ? `${item.node.dtype}[${item.node.shape}]` : `${item.nodes.length} ops`)
      + (equal > 1 ? `, ${equal} equal` : "") + (read > READERS ? `, read by ${read} boxes` : "");
    item.width = 20 + 6.6 * Math.max(item.label.length, item.more.length);
    layout.setNode(String(item.id), { width: item.width, height: 36 });
  }
  for (const some of readers.values()) {
    let left = some.length > READERS ? DRAWN : some.length; // beyond these, those that would have none
    for (const [a, b] of some) {
      if (left-- > 0 || sources.get(b) < 2) layout.setEdge(a, b);
      else sources.set(b, sources.get(b) - 1);
    }
  }
  dagre.layout(layout);
  const note = `${items.length} boxes for ${D.graph.nodes.length} ops` + (shown.size > items.length
    ? `; ${shown.size - items.length} more: close some` : "") + ". Click a box to open it, an op to see it.";
  root.append(el("p", { class: "same" }, note + " ",
    el("button", { onclick: () => { open.clear(); apart.clear(); open.add(""); go({ view: "graph", open: opened() || "0" }); } },
      "close all")));
  const frame = el("div", { class: "graph" });
  root.append(frame);
  const svg = d3.select(frame).append("svg").attr("role", "group").attr("aria-label", "Tensor graph");
  const inner = svg.append("g");
  const zoom = d3.zoom().scaleExtent([0.05, 3]).on("zoom", (e) => inner.attr("transform", e.transform));
  svg.call(zoom).on("dblclick.zoom", null);
  const line = d3.line().x((p) => p.x).y((p) => p.y).curve(d3.curveBasis);
  inner.selectAll("path").data(layout.edges()).join("path").attr("class", "edge")
    .attr("d", (e) => line(layout.edge(e).points));
  const marked = where.node != null ? at.get(Number(where.node)) : undefined;
  const boxes = inner.selectAll("g").data(items).join("g")
    .attr("class", (s) => (s.node ? "op" : "group") + (s.id === marked ? " mark" : ""))
    .attr("transform", (s) => { const p = layout.node(String(s.id)); return `translate(${p.x},${p.y})`; })
    .attr("tabindex", 0).attr("role", "button").style("cursor", "pointer")
    .attr("aria-label", (s) => `${s.label}, ${s.more}`)
    .on("click", (_, s) => clicked(s)).on("keydown", (e, s) => { if (e.key === "Enter") clicked(s); });
  boxes.append("rect").attr("x", (s) => -s.width / 2).attr("y", -18).attr("rx", 6)
    .attr("width", (s) => s.width).attr("height", 36);
  boxes.append("text").attr("text-anchor", "middle").attr("y", -3).text((s) => s.label);
  boxes.append("text").attr("text-anchor", "middle").attr("y", 11).style("fill", "var(--soft)").text((s) => s.more);
  const size = layout.graph(), box = frame.getBoundingClientRect();
  const scale = Math.max(0.45, Math.min(1, box.width / (size.width + 40), box.height / (size.height + 40)));
  const centre = marked !== undefined ? layout.node(String(marked)) : { x: size.width / 2, y: 0 };
  const top = marked !== undefined ? box.height / 2 - centre.y * scale : 20;
  svg.call(zoom.transform, d3.zoomIdentity.translate(box.width / 2 - centre.x * scale, top).scale(scale));
  if (D.graph.nodes[where.node]) nodeDetails(D.graph.nodes[where.node]);
}
function clicked(item) {
  if (item.node) return go({ view: "graph", node: item.node.id, open: opened() });
  open.add(item.id);
  if (item.kin) open.add(item.kin[0]); // the parts of one stand for those of all
  go({ view: "graph", open: opened() });
}
function nodeDetails(node) {
  details(`%${node.id} ${node.op}`, el("p", {}, `${node.dtype}[${node.shape}] `, el("code", {}, node.arg)),
    el("h2", {}, "your lines"), lineList(node.lines),
    el("h2", {}, "computed by"), el("ul", {}, node.kernels.map((k) => el("li", {},
      el("a", { href: `#view=kernels&kernel=${k}` }, `${k + 1}. ${D.kernels[k].name}`)))),
    el("h2", {}, "reads"), el("ul", {}, node.src.map((s) => el("li", {},
      el("a", { href: `#view=graph&node=${s}` }, `%${s} ${D.graph.nodes[s].op}`)))));
}

// --- passes: before and after, with the laws that fired -------------------------------------------

function texts() {
  let now = D.graph.text;
  return D.passes.map((p) => { const before = now; if (p.text != null) now = p.text; return [before, now]; });
}
function compared(mine, theirs, kind) {
  const other = new Set(theirs.split("\n").map(stripped)), pre = el("pre", { tabindex: 0 });
  for (const line of mine.split("\n"))
    pre.append(other.has(stripped(line)) ? line + "\n" : el("span", { class: kind }, line));
  return pre;
}
const stripped = (line) => line.replace(/%\d+/g, "%").trim();
function drawPasses(root) {
  const step = within(where.step, D.passes), [before, after] = texts()[step];
  const pass = D.passes[step];
  const nav = el("nav", { "aria-label": "Passes" }, D.passes.map((p, i) => el("button",
    { "aria-current": i === step, class: p.changed ? "" : "same", onclick: () => go({ view: "passes", step: i }) },
    `${i + 1}. ${p.name}${p.changed ? "" : " (nothing)"}`)));
  const fired = d3.groups(pass.laws, (l) => [l.law, l.before, l.after, l.source].join("\n"));
  const laws = fired.length ? el("div", { class: "laws" }, el("table", {}, el("tr", {},
    ["", "law", "before", "after", "written at", "your lines"].map((h) => el("th", {}, h))),
    fired.map(([, all]) => el("tr", {}, el("td", { class: "number" }, `${all.length}x`),
      [all[0].law, all[0].before, all[0].after, all[0].source,
        [...new Set(all.flatMap((l) => l.lines.slice(0, 1)).map(place))].slice(0, 4).join(", ")]
        .map((c) => el("td", {}, el("code", {}, c))))))) : null;
  root.append(el("div", { class: "split" }, nav, el("section", {},
    el("h2", { id: "pass" }, `${step + 1}. ${pass.name}: ${pass.changed ? "level " + pass.level : "changed nothing"}`),
    laws, el("div", { class: "columns" },
      el("div", {}, el("h2", {}, "before"), compared(before, after, "gone")),
      el("div", {}, el("h2", {}, "after"), compared(after, before, "added"))))));
  const pres = [...root.querySelectorAll("pre")]; // both to what changed first
  const firsts = pres.flatMap((pre) => { const s = pre.querySelector("span"); return s ? [s.offsetTop - pre.offsetTop] : []; });
  if (firsts.length) for (const pre of pres) pre.scrollTop = Math.min(...firsts) - pre.clientHeight / 4;
}

// --- fusion, e-graphs, kernels ---------------------------------------------------------------------

function drawFusion(root) {
  root.append(el("h2", {}, "Kernels, and why each is one of its own"), el("table", {},
    el("tr", {}, ["", "kernel", "because", "lines"].map((h) => el("th", {}, h))),
    D.kernels.map((k, i) => el("tr", {}, el("td", { class: "number" }, String(i + 1)),
      el("td", {}, el("a", { href: `#view=kernels&kernel=${i}` }, k.name)), el("td", {}, k.reason),
      el("td", {}, [...new Set(k.lines.map(place))].slice(0, 3).join(", "))))));
  root.append(el("h2", {}, "What the search compared"));
  if (!D.fusion.regions.length) root.append(el("p", {}, "nothing: no kernels could be merged"));
  for (const r of D.fusion.regions) {
    const rows = [["as they are", r.greedy, r.cost >= r.greedy, r.segments], ...r.alternatives.map((a) =>
      [a.what, a.cost, a.chosen, a.replaces])];
    const rules = Object.entries(r.rules).map(([n, c]) => `${n} x${c}`).join(", ");
    root.append(el("h2", {}, `region of ${r.segments} kernels: ${time(r.greedy)} as they were, ${time(r.cost)} chosen`),
      el("p", { class: "same" }, `${rules ? "rules: " + rules + "; " : ""}${r.terms} terms, ${r.steps} steps` +
        (r.memory ? "; what was cheaper needs more memory at once" : "") +
        (r.untried ? `; ${r.untried} more could not pay` : "")),
      el("table", {}, rows.map(([what, cost, chosen, segments]) => el("tr", {},
        el("td", { class: chosen ? "chosen" : "refused" }, chosen ? "chosen" : "refused"),
        el("td", { class: "number" }, time(cost)), el("td", { class: "number" }, `for ${segments}`),
        el("td", {}, what)))));
  }
}
function drawEgraph(root) {
  const with_ = D.codes.map((c, i) => [c, i]).filter(([c]) => c.egraph);
  if (!with_.length) root.append(el("p", {}, "no kernel here was searched by equality saturation"));
  for (const [code, i] of with_) {
    const users = D.kernels.map((k, n) => [k, n]).filter(([k]) => k.code === i);
    root.append(el("h2", {}, `${users[0][0].name}: ${code.egraph.terms} terms in ${code.egraph.rounds} rounds`),
      el("p", {}, "laws: " + Object.entries(code.egraph.fired).map(([n, c]) => `${n} x${c}`).join(", ")),
      el("table", {}, el("tr", {}, el("th", {}, "class"), el("th", {}, "equal terms")),
        Object.entries(code.egraph.classes).map(([n, terms]) => el("tr", {}, el("td", {}, "#" + n),
          el("td", {}, el("code", {}, terms.join("  =  ")))))));
  }
}
function drawKernels(root) {
  const number = within(where.kernel, D.kernels);
  const k = D.kernels[number], code = D.codes[k.code];
  const nav = el("nav", { "aria-label": "Kernels" }, D.kernels.map((one, i) => el("button",
    { "aria-current": i === number, onclick: () => go({ view: "kernels", kernel: i }) }, `${i + 1}. ${one.name}`)));
  const column = (title, text) => text ? el("div", {}, el("h2", {}, title), el("pre", { tabindex: 0 }, text)) : null;
  root.append(el("div", { class: "split" }, nav, el("section", {}, el("h2", {}, `${number + 1}. ${k.name}`),
    el("p", {}, `${k.reason}. ${bytes(k.bytes)}, ${k.flops.toLocaleString("en")} operations: ` +
      `${time(k.least)} at this machine's rates (${k.bound}), ${time(k.estimate)} by the cost model.`),
    el("div", { class: "columns" }, el("div", {}, el("h2", {}, "your lines"), lineList(k.lines)),
      column("tensor ops", code.body), column("index notation", code.index),
      column(code.language || "text", code.text),
      Object.entries(code.assembly).map(([notation, text]) => column(notation, text))))));
}

// --- memory and time ---------------------------------------------------------------------------------

function chart(root, name, height) {
  const frame = el("div", { style: `height:${height}px` });
  root.append(frame);
  const width = Math.max(frame.getBoundingClientRect().width, 300);
  const svg = d3.select(frame).append("svg").attr("role", "group").attr("aria-label", name);
  return { svg, width };
}
function bar(selection, label, choose) {
  selection.attr("class", "bar").attr("tabindex", 0).attr("role", "button").attr("aria-label", label)
    .on("click", (_, d) => choose(d)).on("keydown", (e, d) => { if (e.key === "Enter") choose(d); })
    .append("title").text(label);
}
function drawMemory(root) {
  const m = D.memory, slots = m.slots.filter((s) => s.kind === "arena"), n = D.kernels.length;
  root.append(el("p", {}, `at most ${bytes(m.peak)}: ${bytes(m.inputs)} of inputs, ${bytes(m.outputs)} of results, ` +
    `${bytes(m.arena)} between kernels. Boxes are values: from kernel to kernel, at their place in the arena.`));
  const { svg, width } = chart(root, "Lifetimes in the arena", 420), left = 70;
  const x = d3.scaleLinear([0, n], [left, width - 10]), y = d3.scaleLinear([0, Math.max(m.arena, 1)], [390, 10]);
  svg.append("g").attr("class", "axis").attr("transform", "translate(0,392)").call(d3.axisBottom(x).ticks(10));
  svg.append("g").attr("class", "axis").attr("transform", `translate(${left},0)`).call(d3.axisLeft(y).ticks(6).tickFormat(bytes));
  const label = (s) => `slot ${s.slot}: ${s.dtype}[${s.shape}], ${bytes(s.bytes)}, kernels ${s.first + 1} to ${s.last + 1}`;
  bar(svg.selectAll("rect.value").data(slots).join("rect").attr("x", (s) => x(s.first))
    .attr("width", (s) => Math.max(2, x(s.last + 1) - x(s.first))).attr("y", (s) => y(s.offset + s.bytes))
    .attr("height", (s) => Math.max(1, y(s.offset) - y(s.offset + s.bytes)))
    .attr("fill", (s) => d3.schemeTableau10[s.slot % 10]), label, (s) => details(`slot ${s.slot}`,
      el("p", {}, label(s)), el("p", {}, "written by ", el("a", { href: `#view=kernels&kernel=${s.first}` }, D.kernels[s.first].name))));
  root.append(el("h2", {}, "alive at once, in each kernel"));
  const second = chart(root, "Bytes alive in each kernel", 130);
  const h = d3.scaleLinear([0, d3.max(m.alive) || 1], [110, 5]);
  second.svg.append("path").attr("fill", "var(--accent)").attr("fill-opacity", .4).attr("d", d3.area().curve(d3.curveStepAfter)
    .x((_, i) => x(i)).y0(110).y1((b) => h(b))([...m.alive, m.alive[m.alive.length - 1] || 0]));
  second.svg.append("g").attr("class", "axis").attr("transform", `translate(${left},0)`).call(d3.axisLeft(h).ticks(3).tickFormat(bytes));
}
function drawTimeline(root) {
  if (!D.timeline) { root.append(el("p", {}, "no profile: give viz a profile to see when kernels ran")); return; }
  const spans = D.timeline.events.filter((e) => e.ph === "X"), names = new Map();
  for (const e of D.timeline.events) if (e.ph === "M") names.set(`${e.name} ${e.pid} ${e.tid}`, e.args.name);
  const lanes = [...new Set(spans.map((e) => `${e.pid} ${e.tid}`))].sort();
  const title = (lane) => `${names.get("process_name " + lane.split(" ")[0] + " 0") || ""}: ${names.get("thread_name " + lane) || "track"}`;
  const { svg, width } = chart(root, "Time line", 40 + 44 * lanes.length);
  const base = d3.scaleLinear([d3.min(spans, (e) => e.ts), d3.max(spans, (e) => e.ts + e.dur)], [10, width - 10]);
  const axis = svg.append("g").attr("class", "axis").attr("transform", `translate(0,${20 + 44 * lanes.length})`);
  lanes.forEach((lane, i) => svg.append("text").attr("x", 10).attr("y", 44 * i + 12).text(title(lane)));
  const label = (e) => `${e.name}: ${time(e.dur * 1e3)}${e.args && e.args.lines ? ", " + e.args.lines.map(short).join(", ") : ""}`;
  const rects = svg.append("g").selectAll("rect").data(spans).join("rect").attr("height", 22)
    .attr("y", (e) => 44 * lanes.indexOf(`${e.pid} ${e.tid}`) + 18)
    .attr("fill", (e) => d3.schemeTableau10[[...e.name].reduce((a, c) => a + c.charCodeAt(0), 0) % 10]);
  bar(rects, label, (e) => details(e.name, el("table", {}, Object.entries({ took: time(e.dur * 1e3), ...e.args })
    .map(([k, v]) => el("tr", {}, el("td", {}, k), el("td", {}, String(v)))))));
  const drawn = (scale) => {
    rects.attr("x", (e) => scale(e.ts)).attr("width", (e) => Math.max(1, scale(e.ts + e.dur) - scale(e.ts)));
    axis.call(d3.axisBottom(scale).ticks(8).tickFormat((t) => time(t * 1e3)));
  };
  drawn(base);
  svg.call(d3.zoom().scaleExtent([1, 2000]).translateExtent([[0, 0], [width, 0]]).on("zoom", (e) => drawn(e.transform.rescaleX(base))));
  root.append(el("p", { class: "same" }, "scroll to zoom, drag to move"));
}
function drawFlame(root) {
  if (!D.timeline) { root.append(el("p", {}, "no profile: give viz a profile to see where time went")); return; }
  const tree = d3.hierarchy(D.timeline.flame).sum((d) => d.children && d.children.length ? 0 : d.value);
  let focus = d3.partition()(tree);
  for (const name of (where.path || "").split("\u2192").filter(Boolean))
    focus = (focus.children || []).find((c) => c.data.name === name) || focus;
  const path = (d) => d.ancestors().reverse().slice(1).map((a) => a.data.name);
  root.append(el("p", {}, ["all", ...path(focus)].join(" → ") + `: ${time(focus.value)} `,
    el("button", { onclick: () => go({ view: "flame" }) }, "all")));
  const deep = tree.height + 1, { svg, width } = chart(root, "Flame graph", 26 * deep + 10);
  const x = d3.scaleLinear([focus.x0, focus.x1], [0, width]);
  const seen = tree.descendants().filter((d) => d.x1 > focus.x0 && d.x0 < focus.x1 && x(d.x1) - x(d.x0) > .5);
  const cells = svg.selectAll("g").data(seen).join("g").attr("transform", (d) => `translate(${Math.max(0, x(d.x0))},${26 * d.depth})`);
  const wide = (d) => Math.min(width, x(d.x1)) - Math.max(0, x(d.x0));
  const label = (d) => `${d.data.name}: ${time(d.value)} (${(100 * d.value / tree.value).toFixed(1)} %)`;
  bar(cells.append("rect").attr("width", wide).attr("height", 24).attr("fill", (d) => d3.interpolateWarm(.25 + .6 * ((d.x0 * 7.3) % 1))),
    label, (d) => go({ view: "flame", path: path(d).join("\u2192") }));
  cells.filter((d) => wide(d) > 40).append("text").attr("x", 4).attr("y", 16).style("pointer-events", "none")
    .style("fill", "#111").text((d) => short(d.data.name).slice(0, wide(d) / 6.5));
}
const SHOW = { graph: drawGraph, passes: drawPasses, fusion: drawFusion, egraph: drawEgraph, memory: drawMemory,
  kernels: drawKernels, timeline: drawTimeline, flame: drawFlame };

// --- search and keys -----------------------------------------------------------------------------------

function openTo(node) {
  const merged = alike();
  let key = "";
  for (const part of groupsOf(node)) {
    key += "/" + part;
    const kin = merged.get(key);
    if (kin) apart.add(kin[0]);
    open.add(key);
  }
}
function search(text) {
  const list = $("found"), words = text.toLowerCase().split(/\s+/).filter(Boolean), hits = [];
  const numbered = /^%(\d+)$/.exec(text.trim()), exact = numbered && D.graph.nodes[numbered[1]];
  const toNode = (n) => hits.push([`%${n.id} ${n.op} ${n.dtype}[${n.shape}] ${n.path.join("/")}`,
    () => { openTo(n); go({ view: "graph", node: n.id, open: opened() }); }]);
  const has = (...parts) => { const t = parts.join(" ").toLowerCase(); return words.every((w) => t.includes(w)); };
  if (exact) toNode(exact);
  else if (words.length) {
    D.kernels.forEach((k, i) => has("kernel", k.name, k.reason, ...k.lines.map((l) => D.lines[l].code)) &&
      hits.push([`kernel ${i + 1}: ${k.name}`, () => go({ view: "kernels", kernel: i })]));
    D.passes.forEach((p, i) => {
      if (has("pass", p.name)) hits.push([`pass: ${p.name}`, () => go({ view: "passes", step: i })]);
      for (const l of p.laws) if (has("law", l.law)) hits.push([`law: ${l.law}`, () => go({ view: "passes", step: i })]);
    });
    for (const n of D.graph.nodes)
      if (has(n.op, n.path.join("/"), ...n.lines.map((l) => place(l) + " " + D.lines[l].code))) toNode(n);
  }
  const more = hits.length - MOST_HITS;
  list.hidden = !words.length;
  list.replaceChildren(...hits.slice(0, MOST_HITS).map(([label, act]) => el("li", {}, el("button",
    { onclick: () => { list.hidden = true; act(); } }, label))),
    ...(more > 0 ? [el("li", {}, `${more} more: say more`)] : !hits.length && words.length ? [el("li", {}, "nothing found")] : []));
}
function choose(by) { // up and down through what was found, and back to the box above it
  const hits = [...$("found").querySelectorAll("button")];
  const next = Math.min(hits.indexOf(document.activeElement) + by, hits.length - 1);
  (hits[next] || $("search")).focus();
}
function key(event) {
  const typing = event.target === $("search"), choosing = event.target.closest && event.target.closest("#found");
  const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (event.key === "Escape") { $("found").hidden = true; $("details").hidden = true; $("search").blur(); return; }
  if ((typing || choosing) && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
    event.preventDefault();
    return choose(by);
  }
  if (choosing) return;
  if (typing) {
    if (event.key === "Enter") { const first = $("found").querySelector("button"); if (first) first.click(); $("search").blur(); }
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") { event.preventDefault(); $("search").focus(); $("search").select(); return; }
  const number = Number(event.key);
  if (number >= 1 && number <= VIEWS.length) return go({ view: VIEWS[number - 1] });
  if (!by || event.target.closest("pre")) return;
  const stepped = { passes: ["step", D.passes.length], kernels: ["kernel", D.kernels.length] }[where.view];
  if (stepped) {
    event.preventDefault();
    const next = Math.min(Math.max(Number(where[stepped[0]] || 0) + by, 0), stepped[1] - 1);
    go({ view: where.view, [stepped[0]]: next });
  }
}
function theme(name, keep = true) {
  document.documentElement.dataset.theme = name;
  if (keep) try { localStorage.setItem("fulgurite-theme", name); } catch { /* a page of a file may have none */ }
}
async function begin() {
  D = await unpacked();
  divide();
  keys = allKeys();
  let kept = null;
  try { kept = localStorage.getItem("fulgurite-theme"); } catch { /* as above */ }
  const dark = matchMedia("(prefers-color-scheme: dark)");
  theme(kept || (dark.matches ? "dark" : "light"), false);
  VIEWS.forEach((view, i) => $("tabs").append(el("button", { role: "tab", "data-view": view, title: `key ${i + 1}`,
    onclick: () => go({ view }) }, TITLES[view])));
  $("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  $("search").addEventListener("input", (e) => search(e.target.value));
  addEventListener("keydown", key);
  addEventListener("hashchange", arrived);
  arrived();
  document.documentElement.dataset.ready = "yes";
}
begin();
