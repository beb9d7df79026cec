"use strict";
// Draws one program: bars over time above, the text it made below, one call's details at the side.
// Where everything goes was computed when the page was written; this only draws and answers to the user.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { lanes, calls } = data;
  const dense = lanes.reduce((sum, lane) => sum + lane.rows, 0) > 40;
  const ROW = dense ? 14 : 26;
  const AXIS = 24;
  const $ = (id) => document.getElementById(id);
  const SVG = "http://www.w3.org/2000/svg";

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
  }

  function shape(parent, tag, attributes, text) {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  }

  const seconds = (s) => (s < 1 ? `${Math.round(s * 1000)} ms` : `${s.toFixed(s < 10 ? 2 : 1)} s`);
  const known = (value) => value !== null && value !== undefined;
  const look = (call) => (call.error ? "error" : call.cancelled ? "cancelled" : call.kind);
  const titleOf = (call) => call.name || call.kind;

  // ---- header ----

  function header() {
    $("title").textContent = data.title;
    const facts = $("summary");
    const fact = (value, label) => facts.append(element("span", {}, element("b", {}, String(value)), ` ${label}`));
    fact(seconds(data.total), "in all");
    fact(calls.length, calls.length === 1 ? "call" : "calls");
    fact(data.tokens, "tokens made");
    if (data.prompt_tokens) {
      const share = Math.round((100 * data.cached_tokens) / data.prompt_tokens);
      const meter = element("span", { class: "meter" }, element("i", { style: `width:${share}%` }));
      facts.append(
        element("span", {}, element("b", {}, `${share} %`), ` of ${data.prompt_tokens} prompt tokens cached`, meter),
      );
    }
    if (data.backend) fact(data.backend, "");
    const failed = calls.filter((call) => call.error).length;
    if (data.errors.length) facts.append(element("b", { class: "failed" }, "failed"));
    if (failed) {
      const label = failed === 1 ? "1 error" : `${failed} errors`;
      facts.append(element("button", { type: "button", onclick: nextError }, label));
    }
    for (const error of data.errors) $("story").append(element("div", { class: "bad" }, error));
  }

  // ---- timeline ----

  const tops = [];
  let height = 6;
  for (const lane of lanes) {
    tops.push(height);
    height += lane.rows * ROW + (dense ? 2 : 6);
  }
  let zoom = 1;
  const bars = [];

  function ticks(width) {
    const wanted = data.total / Math.max(2, width / 110);
    const power = 10 ** Math.floor(Math.log10(wanted || 1));
    const step = [1, 2, 5, 10].map((n) => n * power).find((s) => s >= wanted) || 1;
    const marks = [];
    for (let n = 0; n * step <= data.total * 1.0001; n++) marks.push(n * step);
    return marks;
  }

  function timeline() {
    const place = $("timeline");
    const kept = place.scrollLeft / Math.max(1, place.scrollWidth);
    place.replaceChildren();
    bars.length = 0;
    const labels = element("div", { id: "labels", style: `height:${height}px` });
    const room = Math.max(300, place.clientWidth - 210);
    const width = Math.round(room * zoom);
    const x = (time) => 4 + (time / (data.total || 1)) * (width - 14);
    const axis = document.createElementNS(SVG, "svg");
    axis.id = "axis";
    axis.setAttribute("width", width);
    axis.setAttribute("height", AXIS);
    const plot = document.createElementNS(SVG, "svg");
    plot.setAttribute("width", width);
    plot.setAttribute("height", height);
    plot.setAttribute("role", "list");
    for (const time of ticks(width)) {
      if (x(time) + 45 < width) shape(axis, "text", { x: x(time) + 3, y: 16 }, seconds(time));
      shape(plot, "line", { class: "grid", x1: x(time), x2: x(time), y1: 0, y2: height });
    }
    lanes.forEach((lane, index) => {
      const middle = tops[index] + ROW / 2;
      labels.append(
        element(
          "div",
          {
            class: lane.failed ? "lane failed" : "lane",
            style: `top:${tops[index]}px;line-height:${ROW}px;padding-left:${12 + Math.min(lane.depth, 6) * 14}px`,
            title: lane.label,
          },
          lane.label,
        ),
      );
      shape(plot, "line", { class: "life", x1: x(lane.start), x2: x(lane.end), y1: middle, y2: middle });
      if (lane.parent >= 0) {
        const top = tops[lane.parent] + ROW / 2;
        shape(plot, "path", { class: "branch", d: `M${x(lane.start)} ${top}V${middle}` });
      }
    });
    calls.forEach((call, index) => bars.push(bar(plot, call, index, x)));
    place.append(element("div", { id: "corner" }), axis, labels, plot);
    place.scrollLeft = kept * place.scrollWidth;
    mark();
  }

  function bar(plot, call, index, x) {
    const left = x(call.start);
    const wide = Math.max(2.5, x(call.end) - left);
    const top = tops[call.lane] + call.row * ROW + 2;
    const tall = ROW - 5;
    const group = shape(plot, "g", {
      class: `call ${look(call)}`,
      role: "listitem",
      tabindex: -1,
      "aria-label": `${titleOf(call)}, ${seconds(call.end - call.start)}${call.error ? ", failed" : ""}`,
    });
    shape(group, "rect", { class: "body", x: left, y: top, width: wide, height: tall, rx: 3 });
    if (known(call.first)) {
      const waited = Math.max(0, Math.min(wide, x(call.first) - left));
      shape(group, "rect", { class: "wait", x: left, y: top, width: waited, height: tall, rx: 3 });
    }
    if (call.prompt_tokens) {
      const share = (call.cached_tokens || 0) / call.prompt_tokens;
      const y = top + tall - (dense ? 2 : 4);
      const thick = dense ? 2 : 4;
      shape(group, "rect", { class: "computed", x: left, y, width: wide, height: thick });
      shape(group, "rect", { class: "cached", x: left, y, width: wide * share, height: thick });
    }
    if (!dense) label(group, call, left, wide, top);
    shape(group, "rect", { class: "frame", x: left - 1, y: top - 1, width: wide + 2, height: tall + 2, rx: 4 });
    attend(group, index);
    return group;
  }

  /** The name, in the larger of a bar's two parts. */
  function label(group, call, left, wide, top) {
    const waited = known(call.first) ? group.querySelector(".wait").width.baseVal.value : 0;
    const waiting = waited > wide - waited;
    const letters = Math.floor(((waiting ? waited : wide - waited) - 8) / 6.4);
    if (letters < 3) return;
    const name = titleOf(call);
    const text = name.length > letters ? `${name.slice(0, letters - 1)}…` : name;
    const x = left + 5 + (waiting ? 0 : waited);
    shape(group, "text", { class: waiting ? "on-wait" : "", x, y: top + 12 }, text);
  }

  function attend(node, index) {
    node.addEventListener("click", () => select(index));
    node.addEventListener("mouseenter", (event) => tip(calls[index], event));
    node.addEventListener("mousemove", move);
    node.addEventListener("mouseleave", () => ($("tip").hidden = true));
  }

  // ---- tooltip ----

  function figures(call) {
    const parts = [seconds(call.end - call.start)];
    if (known(call.first)) parts.push(`first token after ${seconds(call.first - call.start)}`);
    if (known(call.tokens)) parts.push(`${call.tokens} tokens`);
    if (call.prompt_tokens) parts.push(`${call.cached_tokens || 0} of ${call.prompt_tokens} prompt tokens cached`);
    return parts.join(" · ");
  }

  function tip(call, event) {
    $("tip").replaceChildren(
      element("b", {}, titleOf(call)),
      element("div", {}, figures(call)),
      element("div", { class: "body" }, call.error || call.text),
    );
    $("tip").hidden = false;
    move(event);
  }

  function move(event) {
    const box = $("tip").getBoundingClientRect();
    $("tip").style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8))}px`;
    const below = event.clientY + 16;
    $("tip").style.top = `${below + box.height > innerHeight ? event.clientY - box.height - 12 : below}px`;
  }

  // ---- the text ----

  const pieces = new Map();

  function flow(nodes, className) {
    const made = element("div", { class: className });
    for (const node of nodes) {
      if (node.type === "text") made.append(element("span", { class: "constant" }, node.text));
      else if (node.type === "markup") made.append(element("span", { class: "markup" }, node.text.trim()));
      else if (node.type === "call") made.append(piece(node.call));
      else if (node.type === "program") {
        const inner = flow(node.nodes, "flow");
        made.append(element("h2", { class: "program" }, node.name), inner);
        made.classList.add("wide");
      }
      else if (node.type === "role") {
        const message = flow(node.nodes, `message ${node.role}`);
        message.prepend(element("span", { class: "role" }, node.role));
        made.append(message);
        if (message.querySelector(".fork")) made.classList.add("wide");
      } else if (node.type === "fork") {
        made.classList.add("wide");
        made.append(
          element(
            "div",
            { class: "fork", role: "group", "aria-label": `${node.branches.length} branches` },
            ...node.branches.map((branch) =>
              element(
                "div",
                { class: "branch-column" },
                element("span", { class: "role" }, lanes[branch.lane].label),
                flow(branch.nodes, "flow"),
              ),
            ),
          ),
        );
      }
    }
    return made;
  }

  function piece(index) {
    const call = calls[index];
    const made = element("span", { class: `made ${look(call)}` });
    made.append(element("span", { class: "name" }, titleOf(call)));
    const text = call.error || call.text;
    const missing = call.cancelled ? "given up" : call.running ? "not yet" : "nothing";
    made.append(text ? text : element("span", { class: "empty" }, missing));
    attend(made, index);
    pieces.set(index, made);
    return made;
  }

  // ---- one call ----

  let current = -1;

  function mark() {
    bars.forEach((group, index) => {
      group.classList.toggle("current", index === current);
      group.setAttribute("tabindex", index === Math.max(0, current) ? 0 : -1);
    });
    pieces.forEach((made, index) => made.classList.toggle("current", index === current));
  }

  function select(index) {
    current = index;
    details(calls[index]);
    mark();
    if (bars[index]) {
      bars[index].scrollIntoView({ block: "nearest", inline: "nearest" });
      bars[index].focus({ preventScroll: true });
    }
    if (pieces.has(index)) pieces.get(index).scrollIntoView({ block: "center", inline: "nearest" });
  }

  function section(title, text, className) {
    const copy = element("button", { type: "button" }, "Copy");
    const shown = element("pre", { class: className || "" }, text);
    copy.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(text);
        copy.textContent = "Copied";
      } catch {
        // Frames and pages from files may not write to the clipboard: leave it to the user's own keys.
        getSelection().selectAllChildren(shown);
        copy.textContent = "Selected";
      }
    });
    return [element("h3", {}, title, copy), shown];
  }

  function details(call) {
    const facts = element("dl");
    const fact = (label, value) => {
      if (known(value) && value !== "") facts.append(element("dt", {}, label), element("dd", {}, String(value)));
    };
    fact("kind", call.kind);
    fact("branch", lanes[call.lane].label);
    fact("began", seconds(call.start));
    fact("took", seconds(call.end - call.start) + (call.running ? " so far" : ""));
    if (known(call.first)) fact("first token after", seconds(call.first - call.start));
    fact("prompt tokens", call.prompt_tokens);
    fact("of these cached", call.cached_tokens);
    fact("tokens made", call.tokens);
    if (call.tokens > 1 && known(call.first) && call.end > call.first) {
      fact("speed", `${((call.tokens - 1) / (call.end - call.first)).toFixed(1)} tokens/s`);
    }
    fact("ended by", call.finish);
    fact("written at", call.place);
    const panel = $("details");
    panel.replaceChildren(
      element("button", { type: "button", class: "close", "aria-label": "Close", onclick: close }, "✕"),
      element("h2", {}, titleOf(call)),
      facts,
    );
    if (call.error) panel.append(...section("Error", call.error, "bad"));
    if (call.choices) panel.append(element("h3", {}, "Choices"), ...choices(call));
    if (call.text) panel.append(...section("Text", call.text));
    if (panel.hidden) {
      panel.hidden = false;
      document.body.classList.add("aside-shown");
      scale(1);
    }
  }

  function choices(call) {
    const scores = call.choices.map((choice) => choice.score).filter(known);
    const best = Math.max(...scores);
    return call.choices.map((choice) => {
      const row = element("div", { class: choice.text === call.text ? "choice won" : "choice" });
      row.append(element("span", {}, choice.text));
      if (known(choice.score)) {
        const share = Math.max(2, 100 * Math.exp(choice.score - best));
        row.append(
          element("span", { class: "bar", style: `width:${share}%` }),
          element("span", { class: "score" }, choice.score.toFixed(3)),
        );
      }
      return row;
    });
  }

  function close() {
    $("details").hidden = true;
    document.body.classList.remove("aside-shown");
    current = -1;
    scale(1);
  }

  // ---- moving about ----

  const inTime = calls.map((_, index) => index).sort((a, b) => calls[a].start - calls[b].start || a - b);

  function step(by) {
    const at = inTime.indexOf(current);
    const next = at < 0 ? (by > 0 ? 0 : inTime.length - 1) : at + by;
    if (next >= 0 && next < inTime.length) select(inTime[next]);
  }

  /** The call nearest in time on the next branch above (-1) or below (1) that has any. */
  function climb(by) {
    if (current < 0) return step(by);
    const { lane, start } = calls[current];
    for (let next = lane + by; next >= 0 && next < lanes.length; next += by) {
      const there = inTime.filter((index) => calls[index].lane === next);
      if (there.length) {
        const away = (index) => Math.abs(calls[index].start - start);
        return select(there.reduce((a, b) => (away(b) < away(a) ? b : a)));
      }
    }
  }

  function nextError() {
    const failed = inTime.filter((index) => calls[index].error);
    if (failed.length) select(failed[(failed.indexOf(current) + 1) % failed.length]);
  }

  function find() {
    const wanted = $("search").value.trim().toLowerCase();
    calls.forEach((call, index) => {
      const hit = [titleOf(call), call.text, call.error || ""].some((text) => text.toLowerCase().includes(wanted));
      bars[index].classList.toggle("dim", !hit);
      if (pieces.has(index)) pieces.get(index).classList.toggle("dim", !hit);
    });
  }

  function scale(factor) {
    zoom = factor === 0 ? 1 : Math.min(64, Math.max(1, zoom * factor));
    timeline();
    find();
  }

  function theme(name) {
    document.documentElement.dataset.theme = name;
  }

  const keys = {
    ArrowRight: () => step(1),
    ArrowLeft: () => step(-1),
    ArrowDown: () => climb(1),
    ArrowUp: () => climb(-1),
    e: nextError,
    "/": () => $("search").focus(),
    "+": () => scale(1.6),
    "=": () => scale(1.6),
    "-": () => scale(1 / 1.6),
    0: () => scale(0),
    m: () => document.body.classList.toggle("markup-shown"),
    t: () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"),
    "?": () => $("keys").showModal(),
    Escape: close,
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || $("keys").open) return;
    if (event.target === $("search")) {
      if (event.key === "Escape" || event.key === "Enter") $("search").blur();
      return;
    }
    if (keys[event.key]) {
      event.preventDefault();
      keys[event.key]();
    }
  });
  $("search").addEventListener("input", find);
  $("zoom-in").addEventListener("click", keys["+"]);
  $("zoom-out").addEventListener("click", keys["-"]);
  $("theme").addEventListener("click", keys.t);
  $("help").addEventListener("click", keys["?"]);
  addEventListener("resize", () => scale(1));

  theme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  header();
  $("story").append(flow(data.story, "flow"));
  timeline();
})();
