// Draws a draft tree as SVG: a row for each node, indented by depth, children below their parent. Used by ui.js.
//
//   ● root
//   ├─● the      accepted: filled, thick line, bold, a tick
//   │ └─○ cat    rejected: hollow
//   └─○ a

const NS = "http://www.w3.org/2000/svg";
const ROW = 22, STEP = 20, LEFT = 11, MIN_WIDTH = 340, MIN_TEXT_WIDTH = 90, RADIUS = 7, LETTER = 7.4;

/** Returns the text of a token with visible white space. */
export function showSpaces(text) {
  return text.replaceAll(" ", "␣").replaceAll("\n", "↵").replaceAll("\t", "⇥") || "∅";
}

/** Returns an SVG element. tree: texts, parents and path from the server. bonus: the text of the bonus token, or null. */
export function drawTree(tree, bonus) {
  const nodes = tree.texts.map((text, node) => ({text, parent: node ? tree.parents[node] : -1, kind: "rejected"}));
  nodes[0].kind = "root";
  for (const node of tree.path) nodes[node].kind = "accepted";
  if (bonus !== null) nodes.push({text: bonus, parent: tree.path.at(-1) ?? 0, kind: "bonus"});
  const rows = layOut(nodes);
  const height = rows.length * ROW + 4, width = Math.max(MIN_WIDTH, ...rows.map((row) => row.x + MIN_TEXT_WIDTH));
  const svg = make("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-labelledby": "tree-title tree-text"});
  svg.append(make("title", {id: "tree-title"}, titleOf(tree)), make("desc", {id: "tree-text"}, textOf(tree, bonus)));
  // Thin lines first, so that the accepted path lies on top.
  const isAccepted = (row) => row.kind === "accepted" || row.kind === "bonus";
  for (const row of [...rows.filter((row) => !isAccepted(row)), ...rows.filter(isAccepted)]) {
    if (row.parent < 0) continue;
    const from = nodes[row.parent];
    const line = `M${from.x} ${from.y + RADIUS} V${row.y} H${row.x - RADIUS}`;
    svg.append(make("path", {d: line, class: `edge ${row.kind}`}));
  }
  for (const row of rows) svg.append(nodeOf(row, width));
  return svg;
}

/** Returns the nodes depth first, the likeliest child first, and sets the position of each. */
function layOut(nodes) {
  const children = nodes.map(() => []);
  nodes.forEach((node, i) => node.parent >= 0 && children[node.parent].push(i));
  const rows = [];
  const visit = (i, depth) => {
    Object.assign(nodes[i], {x: LEFT + depth * STEP, y: rows.length * ROW + ROW / 2 + 2});
    rows.push(nodes[i]);
    for (const child of children[i]) visit(child, depth + 1);
  };
  visit(0, 0);
  return rows;
}

function nodeOf(row, width) {
  const group = make("g", {class: `node ${row.kind}`});
  const mark = {accepted: "✓", bonus: "+"}[row.kind];
  if (row.kind === "bonus") {
    const at = {x: row.x - RADIUS, y: row.y - RADIUS, width: 2 * RADIUS, height: 2 * RADIUS};
    group.append(make("rect", at));
  } else group.append(make("circle", {cx: row.x, cy: row.y, r: row.kind === "rejected" ? RADIUS - 2 : RADIUS}));
  if (mark) group.append(make("text", {x: row.x, y: row.y + 4, class: "mark"}, mark));
  const whole = showSpaces(row.text), maxLetters = Math.floor((width - row.x - RADIUS - 8) / LETTER);
  const letters = [...whole];
  const text = letters.length > maxLetters ? `${letters.slice(0, maxLetters - 1).join("")}…` : whole;
  group.append(make("text", {x: row.x + RADIUS + 5, y: row.y + 4.5, class: "token"}, text));
  if (text !== whole) group.append(make("title", {}, whole));
  return group;
}

function titleOf(tree) {
  return `Draft tree: ${tree.texts.length - 1} drafted, ${tree.path.length} accepted`;
}

function textOf(tree, bonus) {
  const path = tree.path.map((node) => showSpaces(tree.texts[node])).join(" ");
  const accepted = path ? `accepted ${path}` : "accepted nothing";
  return `After ${showSpaces(tree.texts[0])} the target ${accepted}${bonus === null ? "" : ` and sampled ${showSpaces(bonus)}`}.`;
}

function make(name, attributes, text) {
  const element = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}
