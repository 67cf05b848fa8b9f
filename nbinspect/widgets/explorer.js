// A graph to walk in. The kernel lays it out and sends SVG; this file moves, searches and asks.

const SVG = "http://www.w3.org/2000/svg";
const PAD = 14;
const TALLEST = 680;
const ARROWS = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] };
const LOOKS = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "paint-order", "font", "opacity"];
const SLOW_MS = 4000;
const SLOW = "No answer yet: the kernel runs a cell, or it is gone. The picture stays as it is.";

const clamp = (value, least, most) => Math.max(least, Math.min(most, value));

function add(parent, tag, name, text = "") {
  const node = document.createElement(tag);
  node.className = name;
  node.textContent = text;
  parent.append(node);
  return node;
}

function button(parent, text, title, call) {
  const node = add(parent, "button", "nbg-button", text);
  node.type = "button";
  node.title = title;
  node.setAttribute("aria-label", title);
  node.addEventListener("click", call);
}

// A sign on the corner of a box that unfolds: plus or minus, drawn so that no font can move it.
function badge(box, isOpen) {
  const rect = box.querySelector("rect");
  const sign = document.createElementNS(SVG, "g");
  const [x, y, width] = ["x", "y", "width"].map((name) => Number(rect.getAttribute(name)));
  sign.setAttribute("class", "nbg-badge");
  sign.setAttribute("transform", `translate(${x + width - 2},${y + 2})`);
  const circle = document.createElementNS(SVG, "circle");
  circle.setAttribute("r", "7.5");
  const mark = document.createElementNS(SVG, "path");
  mark.setAttribute("d", isOpen ? "M-3.5,0h7" : "M-3.5,0h7M0,-3.5v7");
  sign.append(circle, mark);
  box.append(sign);
}

// Other programs know neither color-mix() nor what the browser makes of it.
function plainColor(value) {
  return value.replace(/color\(srgb ([\d.e-]+) ([\d.e-]+) ([\d.e-]+)[^)]*\)/g, (_, ...parts) =>
    `rgb(${parts.slice(0, 3).map((part) => Math.round(255 * part)).join(", ")})`);
}

// The picture as a file of its own, in the colours of the page.
function standalone(svg, paper) {
  const copy = svg.cloneNode(true);
  const copies = copy.querySelectorAll("*");
  svg.querySelectorAll("*").forEach((node, n) => {
    const look = getComputedStyle(node);
    copies[n].setAttribute("style", LOOKS.map((name) => `${name}:${plainColor(look.getPropertyValue(name))}`).join(";"));
  });
  copy.querySelectorAll(".nbg-badge").forEach((node) => node.remove());
  copy.removeAttribute("style");
  const [left, top, width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
  const place = { x: left - PAD, y: top - PAD, width: width + 2 * PAD, height: height + 2 * PAD };
  const ground = document.createElementNS(SVG, "rect");
  Object.entries({ ...place, fill: plainColor(paper) }).forEach(([name, value]) => ground.setAttribute(name, value));
  copy.prepend(ground);
  copy.setAttribute("viewBox", Object.values(place).join(" "));
  copy.setAttribute("width", place.width);
  copy.setAttribute("height", place.height);
  return { text: new XMLSerializer().serializeToString(copy), width: place.width, height: place.height };
}

async function toPng({ text, width, height }) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const scale = Math.min(2, 8000 / Math.max(width, height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

const edges = (box) => box.getBoundingClientRect();

function around(boxes) {
  const all = boxes.map(edges);
  const most = (call, side) => call(...all.map((each) => each[side]));
  return { left: most(Math.min, "left"), right: most(Math.max, "right"), top: most(Math.min, "top"), bottom: most(Math.max, "bottom") };
}

function middle(box) {
  const { left, right, top, bottom } = edges(box);
  return [(left + right) / 2, (top + bottom) / 2];
}

// What of the picture is seen: scale and shift of the stage inside the view.
function camera(view, stage) {
  let [svg, width, height] = [null, 1, 1];
  const now = { k: 1, x: 0, y: 0 };

  function place(axis, room, length) {
    const free = room - length * now.k;
    now[axis] = free >= 2 * PAD ? free / 2 : clamp(now[axis], free - PAD, PAD);
  }
  function apply() {
    view.style.height = `${Math.ceil(clamp(height * Math.min(now.k, 1) + 2 * PAD, 96, TALLEST))}px`;
    place("x", view.clientWidth, width);
    place("y", view.clientHeight, height);
    svg.style.width = `${width * now.k}px`;
    svg.style.height = `${height * now.k}px`;
    stage.style.transform = `translate(${now.x}px, ${now.y}px)`;
    const fits = width * now.k <= view.clientWidth && height * now.k <= view.clientHeight;
    view.classList.toggle("nbg-movable", !fits);
  }
  function move(dx, dy) {
    now.x += dx;
    now.y += dy;
    apply();
  }
  // Move as little as needed to see this; of what is too large, its left and its top.
  function revealArea(seen) {
    const frame = edges(view);
    const dx = Math.max(0, frame.left + PAD - seen.left) || Math.min(0, Math.max(frame.right - PAD - seen.right, frame.left + PAD - seen.left));
    const dy = Math.max(0, frame.top + PAD - seen.top) || Math.min(0, Math.max(frame.bottom - PAD - seen.bottom, frame.top + PAD - seen.top));
    move(dx, dy);
  }
  return {
    apply,
    move,
    show(newSvg, picture) {
      svg = newSvg;
      stage.replaceChildren(svg);
      [width, height] = [picture.width, picture.height];
      apply();
    },
    zoom(factor, at) {
      const k = clamp(now.k * factor, 0.2, 3);
      const [px, py] = at || [view.clientWidth / 2, view.clientHeight / 2];
      now.x = px - ((px - now.x) * k) / now.k;
      now.y = py - ((py - now.y) * k) / now.k;
      now.k = k;
      apply();
    },
    fit() {
      now.k = clamp(Math.min((view.clientWidth - 2 * PAD) / width, (TALLEST - 2 * PAD) / height), 0.2, 1);
      apply();
    },
    // See all of these boxes if there is room, and the last in any case.
    reveal(...boxes) {
      revealArea(around(boxes));
      revealArea(edges(boxes[boxes.length - 1]));
    },
  };
}

// The nearest box in a direction; what lies straight ahead counts as nearer.
function neighbour(boxes, from, [dx, dy]) {
  const [x, y] = middle(from);
  let [best, least] = [null, Infinity];
  for (const box of boxes) {
    const [bx, by] = middle(box);
    const ahead = (bx - x) * dx + (by - y) * dy;
    const far = ahead + 2 * Math.abs((bx - x) * dy + (by - y) * dx);
    if (ahead > 4 && far < least) [best, least] = [box, far];
  }
  return best;
}

function listenToPointer(view, look, onBox) {
  let drag = null;
  view.addEventListener("pointerdown", (event) => {
    drag = event.button === 0 ? { x: event.clientX, y: event.clientY, moved: false } : null;
  });
  view.addEventListener("pointermove", (event) => {
    if (!drag || !event.buttons) return;
    const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
    if (!drag.moved && Math.hypot(dx, dy) < 4) return;
    view.setPointerCapture(event.pointerId); // not before, or no box would get its click
    drag = { x: event.clientX, y: event.clientY, moved: true };
    look.move(dx, dy);
  });
  view.addEventListener("click", (event) => {
    const box = event.target.closest(".nbi-node");
    if (box && !drag?.moved) onBox(box);
    drag = null;
  });
  view.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return; // the page's own scrolling
    event.preventDefault();
    const frame = edges(view);
    look.zoom(Math.exp(-clamp(event.deltaY, -100, 100) / 300), [event.clientX - frame.left, event.clientY - frame.top]);
  }, { passive: false });
}

function render({ model, el }) {
  const root = add(el, "div", "nbi nbg-explorer");
  root.dataset.lmSuppressShortcuts = "true"; // else JupyterLab takes letters and arrows as commands
  const head = add(root, "div", "nbg-head");
  const title = add(head, "strong", "nbi-title nbg-title");
  const matches = add(head, "span", "nbg-matches");
  matches.setAttribute("role", "status");
  const search = add(head, "input", "nbg-search");
  search.type = "search";
  search.placeholder = "Search";
  search.setAttribute("aria-label", "Search the boxes");
  const controls = add(head, "div", "nbg-tools");
  const tools = add(head, "div", "nbg-tools");
  const view = add(root, "div", "nbg-view");
  const stage = add(view, "div", "nbg-stage");
  const facts = add(root, "div", "nbg-facts");
  const scale = add(root, "div", "nbi-scale");
  const problem = add(root, "div", "nbg-problem");
  problem.setAttribute("role", "alert");
  const said = add(root, "div", "nbg-said");
  said.setAttribute("role", "status");
  const caption = add(root, "p", "nbi-note nbg-caption");
  const look = camera(view, stage);

  let boxes = [];
  let hits = [];
  let waiting = 0;
  let isWorking = false;
  let isGone = false;

  const picture = () => model.get("picture");
  const boxOf = (key) => boxes.find((box) => box.dataset.key === key);
  const own = () => standalone(stage.firstChild, getComputedStyle(root).backgroundColor);
  const name = (ending) => `${picture().title.replace(/\W+/g, "-").toLowerCase() || "graph"}.${ending}`;

  async function savePng() {
    try {
      download(await toPng(own()), name("png"));
    } catch (error) {
      problem.textContent = `No PNG: ${error.message || error}`;
    }
  }
  button(tools, "\u2212", "Zoom out", () => look.zoom(0.8));
  button(tools, "+", "Zoom in", () => look.zoom(1.25));
  button(tools, "Fit", "Show the whole picture", () => look.fit());
  button(tools, "SVG", "Download as SVG", () => download(new Blob([own().text], { type: "image/svg+xml" }), name("svg")));
  button(tools, "PNG", "Download as PNG", savePng);

  function ask(box) {
    if (waiting || isGone || !box.matches(".nbi-unfold")) return;
    box.classList.add("nbg-busy");
    box.setAttribute("aria-busy", "true");
    root.classList.add("nbg-waiting");
    problem.textContent = "";
    said.textContent = "Waiting for the kernel\u2026";
    waiting = setTimeout(() => {
      if (isWorking) return; // an answer is sure
      rest();
      problem.textContent = SLOW;
    }, SLOW_MS);
    model.send({ kind: "toggle", key: box.dataset.key });
  }
  // What the reader may choose: a list where there are options, else on or off.
  function offer({ name: id, label, value, options }) {
    const line = add(controls, "label", "nbg-control", label);
    const field = add(line, options ? "select" : "input", options ? "nbg-button" : "");
    if (options) {
      options.forEach(([key, words]) => (add(field, "option", "", words).value = key));
      field.value = value;
    } else {
      field.type = "checkbox";
      field.checked = value;
    }
    field.addEventListener("change", () => {
      if (isGone) return;
      said.textContent = "Waiting for the kernel\u2026";
      model.send({ kind: "choose", name: id, value: options ? field.value : field.checked });
    });
  }
  function dressControls() {
    const { controls: offered, scale: colours } = picture();
    const focused = [...controls.querySelectorAll("select, input")].indexOf(document.activeElement);
    controls.replaceChildren();
    offered.forEach(offer);
    if (focused >= 0) controls.querySelectorAll("select, input")[focused]?.focus();
    scale.replaceChildren();
    scale.hidden = !colours;
    if (!colours) return;
    add(scale, "span", "", colours.title);
    add(scale, "span", "", colours.low);
    add(scale, "span", "nbi-ramp").style.background = `linear-gradient(90deg, ${colours.fill}0b, ${colours.fill}8c)`;
    add(scale, "span", "", colours.high);
  }
  function rest() {
    clearTimeout(waiting);
    [waiting, isWorking] = [0, false];
    root.classList.remove("nbg-waiting");
    said.textContent = "";
    boxes.forEach((box) => {
      box.classList.remove("nbg-busy");
      box.removeAttribute("aria-busy");
    });
  }

  function find() {
    const words = search.value.trim().toLowerCase();
    hits = words ? boxes.filter((box) => box.querySelector("title").textContent.toLowerCase().includes(words)) : [];
    boxes.forEach((box) => box.classList.toggle("nbg-hit", hits.includes(box)));
    stage.classList.toggle("nbg-searching", Boolean(words));
    matches.textContent = words ? `${hits.length || "no"} ${hits.length === 1 ? "match" : "matches"}` : "";
  }
  function nextHit() {
    const at = hits[(hits.indexOf(boxOf(search.dataset.at)) + 1) % (hits.length || 1)];
    if (!at) return;
    search.dataset.at = at.dataset.key;
    look.reveal(at);
  }

  function dress() {
    const { unfolded, gone } = picture();
    for (const box of boxes) {
      box.classList.toggle("nbg-gone", gone.includes(box.dataset.key));
      if (!box.matches(".nbi-unfold")) continue;
      const isOpen = unfolded.includes(box.dataset.key);
      box.setAttribute("aria-expanded", String(isOpen));
      badge(box, isOpen);
    }
  }
  // What a pointer would be told of a box is there for who uses the keyboard too.
  function tell(box) {
    const lines = box?.querySelector("title")?.textContent.split("\n");
    if (lines) facts.textContent = lines.join(" \u00b7 ");
  }
  // The box that was asked about stays where it was, and what came with it is seen.
  function settle(at, known) {
    const box = boxOf(picture().key);
    if (!box || !at) return;
    const [x, y] = middle(box);
    look.move(at[0] - x, at[1] - y);
    look.reveal(...boxes.filter((each) => !known.has(each.dataset.key)), box);
  }
  function draw() {
    const now = picture();
    const focused = stage.contains(document.activeElement) ? document.activeElement.dataset.key : "";
    const known = new Set(boxes.map((box) => box.dataset.key));
    const before = boxOf(now.key);
    const at = before && middle(before);
    rest();
    title.textContent = now.title;
    const parsed = new DOMParser().parseFromString(now.svg, "image/svg+xml");
    look.show(document.importNode(parsed.documentElement, true), now);
    boxes = [...stage.querySelectorAll(".nbi-node")];
    dress();
    dressControls();
    find();
    settle(at, known);
    if (focused) (boxOf(focused) || boxOf(now.key) || boxes[0]).focus({ preventScroll: true });
    tell(boxOf(focused) || boxOf(now.key) || boxes.find((box) => box.matches(".nbi-target")));
    said.textContent = now.said;
    problem.textContent = now.error;
    const unfolds = boxes.some((each) => each.matches(".nbi-unfold"));
    caption.textContent = `${unfolds ? `${now.hint} ` : ""}${now.caption}`;
  }

  function onKey(event) {
    event.stopPropagation();
    const box = event.target.closest(".nbi-node");
    if (event.key === "Escape") {
      search.value = "";
      find();
    } else if (event.target === search && event.key === "Enter") {
      nextHit();
    } else if (box && (event.key === "Enter" || event.key === " ")) {
      ask(box);
    } else if (box && ARROWS[event.key]) {
      neighbour(boxes, box, ARROWS[event.key])?.focus({ preventScroll: true });
    } else {
      return;
    }
    event.preventDefault();
  }
  root.addEventListener("keydown", onKey);
  root.addEventListener("focusin", (event) => {
    if (event.target.matches(".nbi-node:focus-visible")) look.reveal(event.target);
    tell(event.target.closest(".nbi-node"));
  });
  view.addEventListener("pointerover", (event) => tell(event.target.closest(".nbi-node")));
  search.addEventListener("input", find);
  listenToPointer(view, look, ask);

  function onMessage(message) {
    if (message.kind !== "working" || !waiting) return;
    isWorking = true;
    said.textContent = "Searching\u2026";
  }
  function onKernelGone() {
    isGone = true;
    rest();
    root.classList.add("nbg-dead");
    problem.textContent = "The kernel is gone; the picture stays as it is.";
  }
  const events = [["change:picture", draw], ["msg:custom", onMessage], ["comm_live_update", onKernelGone]];
  events.forEach(([event, call]) => model.on(event, call));
  draw();
  let isPlaced = false;
  const resized = new ResizeObserver(() => {
    look.apply();
    if (isPlaced || !view.clientWidth || !boxes.length) return;
    isPlaced = true; // the first time that it is on the page
    look.reveal(...stage.querySelectorAll(".nbi-target"), stage.querySelector(".nbi-root") || boxes[0]);
  });
  resized.observe(root);
  return () => {
    resized.disconnect();
    clearTimeout(waiting);
    events.forEach(([event, call]) => model.off(event, call));
  };
}

export default { render };
