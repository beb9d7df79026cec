"use strict";
// Looks at a server once a second while the page is seen: figures from /metrics, the prefix cache from /cache_tree,
// requests from /requests. Texts are other people's: they reach the page as text nodes only.
(() => {
  const PERIOD = 1000;
  const MINUTE = 60;
  const ROW = 24;
  const SVG = "http://www.w3.org/2000/svg";
  const $ = (id) => document.getElementById(id);

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
  }

  function shape(parent, tag, attributes) {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    parent.append(made);
  }

  const count = (n) => Math.round(n).toLocaleString("en").replaceAll(",", "\u202f");
  const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
  const percent = (share) => `${Math.round(100 * share)} %`;
  const seconds = (s) => (s < 1 ? `${Math.round(s * 1000)} ms` : `${s.toFixed(s < 10 ? 2 : 1)} s`);
  const oneLine = (text) => text.replace(/\n/g, "↵").replace(/\s+/g, " ");

  // ---- asking the server ----

  class Refused extends Error {
    constructor(status, message) {
      super(message);
      this.status = status;
    }
  }

  /** A response of this server. `admin`: the route takes the admin key where there is one. */
  async function ask(path, admin = false, options = {}) {
    const key = (admin && sessionStorage.getItem("admin-key")) || sessionStorage.getItem("api-key");
    const headers = { ...options.headers, ...(key ? { authorization: `Bearer ${key}` } : {}) };
    const response = await fetch(path, { ...options, headers, cache: "no-store" });
    if (response.ok) return response;
    const body = await response.json().catch(() => ({}));
    throw new Refused(response.status, body.error?.message || `${path} answered with status ${response.status}.`);
  }

  function wantKey(why) {
    if ($("key").open) return;
    $("key-why").textContent = why;
    for (const name of ["api-key", "admin-key"]) $(name).value = sessionStorage.getItem(name) || "";
    $("key").showModal();
  }

  $("key").addEventListener("close", () => {
    for (const name of ["api-key", "admin-key"]) {
      if ($(name).value) sessionStorage.setItem(name, $(name).value);
      else sessionStorage.removeItem(name);
    }
    tick();
  });

  // ---- figures ----

  /** Prometheus text → sums over all labels; of a histogram, the counts of its buckets by upper bound. */
  function parseMetrics(text) {
    const values = {};
    for (const line of text.split("\n")) {
      const found = /^sglang:(\w+)(?:\{(.*)\})? (\S+)/.exec(line);
      if (!found) continue;
      const [, name, labels = "", number] = found;
      const bound = /(?:^|,)le="([^"]+)"/.exec(labels);
      if (bound) {
        const buckets = (values[name] ||= {});
        buckets[bound[1]] = (buckets[bound[1]] || 0) + Number(number);
      } else values[name] = (values[name] || 0) + Number(number);
    }
    return values;
  }

  /** Counts by bucket since `before`, or ever if nothing came since: [[lower, upper, count], …], not cumulative. */
  function buckets(now, before, name) {
    const counts = now[`${name}_bucket`] || {};
    const old = before[`${name}_bucket`] || {};
    const bounds = Object.keys(counts).sort((a, b) => Number(a.replace("+Inf", "Infinity")) - Number(b.replace("+Inf", "Infinity")));
    const last = bounds.at(-1);
    const recent = last !== undefined && counts[last] > (old[last] || 0);
    let [lower, sum] = [0, 0];
    return bounds.map((bound) => {
      const upper = bound === "+Inf" ? lower * 2 : Number(bound);
      const upTo = counts[bound] - (recent ? old[bound] || 0 : 0);
      const bucket = [lower, upper, upTo - sum];
      [lower, sum] = [upper, upTo];
      return bucket;
    });
  }

  function quantile(parts, q) {
    let left = q * parts.reduce((sum, part) => sum + part[2], 0);
    for (const [lower, upper, n] of parts) {
      if (n && left <= n) return lower + ((upper - lower) * left) / n;
      left -= n;
    }
    return 0;
  }

  const history = [];
  const cards = ["tokens/s", "hit rate", "requests", "KV pool", "first token", "time per token"].map((label) => {
    const value = element("b");
    const note = element("span");
    const plot = document.createElementNS(SVG, "svg");
    plot.setAttribute("preserveAspectRatio", "none");
    $("charts").append(element("div", { class: "card" }, element("div", {}, element("span", {}, `${label} `, value), note), plot));
    return { value, note, plot };
  });

  /** Lines over the last two minutes; `series`: [class, values]. */
  function lines(card, series, most) {
    card.plot.replaceChildren();
    card.plot.setAttribute("viewBox", `0 0 ${2 * MINUTE - 1} 100`);
    const top = most || Math.max(1e-9, ...series.flatMap(([, values]) => values));
    for (const [name, values] of series) {
      const x = (i) => 2 * MINUTE - values.length + i;
      const points = values.map((value, i) => `${x(i)} ${98 - 94 * Math.min(1, value / top)}`).join("L");
      shape(card.plot, "path", { class: `area ${name}`, d: `M${x(0)} 100L${points}L${x(values.length - 1)} 100Z` });
      shape(card.plot, "path", { class: name, d: `M${points}` });
    }
  }

  function bars(card, parts) {
    card.plot.replaceChildren();
    const total = parts.reduce((sum, part) => sum + part[2], 0);
    card.value.textContent = total ? `p50 ${seconds(quantile(parts, 0.5))}` : "–";
    card.note.textContent = total ? `p95 ${seconds(quantile(parts, 0.95))}` : "";
    const used = parts.map((part) => part[2] > 0);
    const shown = parts.slice(Math.max(0, used.indexOf(true) - 1), used.lastIndexOf(true) + 2);
    const most = Math.max(1, ...shown.map((part) => part[2]));
    card.plot.setAttribute("viewBox", `0 0 ${10 * Math.max(6, shown.length)} 100`);
    shown.forEach(([lower, upper, n], i) => {
      const height = n ? Math.max(3, (94 * n) / most) : 1;
      shape(card.plot, "rect", { class: "blue", x: 10 * i + 1, y: 100 - height, width: 8, height });
      const title = document.createElementNS(SVG, "title");
      title.textContent = `${seconds(lower)} to ${seconds(upper)}: ${n}`;
      card.plot.lastChild.append(title);
    });
  }

  function figures(now) {
    const of = (name) => now[name] || 0;
    history.push(now);
    if (history.length > 2 * MINUTE) history.shift();
    const before = history.length > MINUTE ? history[history.length - MINUTE - 1] : {};
    const track = (...names) => history.map((values) => names.reduce((sum, name) => sum + (values[name] || 0), 0));
    const pool = of("max_total_num_tokens") || 1;
    const kept = of("num_used_tokens") + of("kv_evictable_tokens");
    const set = (card, value, note) => ([card.value.textContent, card.note.textContent] = [value, note]);
    set(cards[0], count(of("gen_throughput")), `${count(of("generation_tokens_total"))} made`);
    lines(cards[0], [["blue", track("gen_throughput")]]);
    set(cards[1], percent(of("cache_hit_rate")), `${count(of("cached_tokens_total"))} cached`);
    lines(cards[1], [["green", track("cache_hit_rate")]], 1);
    set(cards[2], count(of("num_running_reqs")), `${count(of("num_queue_reqs"))} waiting`);
    lines(cards[2], [["grey", track("num_running_reqs", "num_queue_reqs")], ["blue", track("num_running_reqs")]]);
    set(cards[3], percent(kept / pool), `${count(pool)} tokens`);
    lines(cards[3], [["green", track("num_used_tokens", "kv_evictable_tokens")], ["blue", track("num_used_tokens")]], pool);
    bars(cards[4], buckets(now, before, "time_to_first_token_seconds"));
    bars(cards[5], buckets(now, before, "inter_token_latency_seconds"));
    const facts = [
      [plural(of("num_requests_total"), "request"), "served"],
      [count(of("kv_evictable_tokens")), "tokens only cached"],
      [count(of("num_used_tokens")), "in use"],
    ];
    if (of("kv_pinned_tokens")) facts.push([count(of("kv_pinned_tokens")), "pinned"]);
    if (of("hicache_host_total_tokens")) facts.push([count(of("hicache_host_used_tokens")), "in host memory"]);
    if (of("evicted_tokens_total")) facts.push([count(of("evicted_tokens_total")), "evicted"]);
    $("summary").replaceChildren(...facts.map(([value, label]) => element("span", {}, element("b", {}, value), ` ${label}`)));
  }

  // ---- the tree: a run is as tall as all that follows it, so that sharing can be seen ----

  let focus = []; // on the way to the part that is shown: [{ path, label }]
  let current = "";
  let runs = new Map(); // path → run, as drawn
  const labelOf = (run) => ("namespace" in run ? run.namespace || "default namespace" : oneLine(run.text || `${run.tokens} tokens`));

  /** Give each run its path, its children, its place in rows, and its distance from the left in pixels. */
  function arrange(list) {
    const base = focus.length ? focus.at(-1).path : "";
    for (const run of list) {
      run.up = list[run.parent];
      run.path = run.up ? `${run.up.path}/${run.id}` : base || `${run.id}`;
      run.below = [];
      run.up?.below.push(run);
      run.root = "namespace" in run;
      run.width = run.root ? 26 : Math.min(440, 130 + 34 * Math.log2(1 + run.pages));
      run.left = run.up ? run.up.left + run.up.width + 3 : 4;
    }
    for (const run of [...list].reverse()) {
      run.rows = Math.max(1, run.below.reduce((sum, child) => sum + child.rows, 0) + (run.more > 0));
    }
    let free = 0;
    const newest = (a, b) => b.id - a.id;
    for (const run of [...list.filter((one) => !one.up).sort(newest)]) {
      run.row = free;
      free += run.rows;
    }
    for (const run of list) {
      let row = run.row;
      for (const child of run.below.sort(newest)) {
        child.row = row;
        row += child.rows;
      }
      run.moreRow = row;
    }
    return free;
  }

  function put(node, left, row, width, rows) {
    node.style.transform = `translate(${left}px, ${4 + row * ROW}px)`;
    node.style.width = `${width}px`;
    node.style.height = `${rows * ROW - 3}px`;
  }

  function blockOf(run, before) {
    if (before) return before.block;
    const [text, facts] = [element("span", { class: "text" }), element("span", { class: "figures" })];
    const block = element("div", { class: "run", role: "treeitem", tabindex: -1 }, element("div", { class: "in" }, text, facts));
    block.addEventListener("click", () => select(run.path));
    block.addEventListener("dblclick", () => look(run.path));
    if (runs.size) block.animate([{ opacity: 0 }, { opacity: 1 }], 300);
    return block;
  }

  function drawTree(view) {
    performance.mark("tree");
    const rows = arrange(view.runs);
    const hottest = Math.log(1 + Math.max(1, ...view.runs.map((run) => run.hits)));
    const drawn = new Map();
    const stubs = [];
    const wanted = $("search").value.trim().toLowerCase();
    for (const run of view.runs) {
      const before = runs.get(run.path);
      const block = (run.block = blockOf(run, before));
      drawn.set(run.path, run);
      put(block, run.left, run.row, run.width, run.rows);
      const tall = run.rows > 1 && !run.root;
      const reading = run.locks > run.pins && !run.root;
      const kind = [run.root && "root", tall && "tall", reading && "reading", run.pins && !run.root && "pinned"];
      const dim = wanted && !labelOf(run).toLowerCase().includes(wanted);
      block.className = ["run", ...kind, dim && "dim", run.path === current && "current"].filter(Boolean).join(" ");
      block.style.setProperty("--heat", run.root ? 0 : (Math.log(1 + run.hits) / hottest).toFixed(2));
      const [text, facts] = block.firstChild.children;
      const label = labelOf(run);
      if (text.textContent !== label) text.textContent = label;
      text.style.webkitLineClamp = tall ? Math.max(1, Math.floor((run.rows * ROW - 26) / 16)) : "";
      facts.textContent = [
        count(run.tokens),
        run.hits && plural(run.hits, "hit"),
        reading && `${run.locks - run.pins} reading`,
        run.pins && "pinned",
      ].filter(Boolean).join(" · ");
      block.title = `${plural(run.tokens, "token")} in ${plural(run.pages, "page")} behind ${count(run.start)}`;
      if (before && run.hits > before.hits) {
        block.animate([{ backgroundColor: getComputedStyle(block).getPropertyValue("--cached") }, {}], 900);
      }
      if (!before) $("tree").append(block);
      if (run.more > 0) {
        const stub = element("button", { type: "button", class: "more", onclick: () => lookMore(run.path) }, `${count(run.more)} more`);
        put(stub, run.left + run.width + 3, run.moreRow, 120, 1);
        stubs.push(stub);
      }
    }
    for (const [path, run] of runs) if (!drawn.has(path)) run.block.remove();
    for (const old of $("tree").querySelectorAll(".more, .empty")) old.remove();
    $("tree").append(...stubs);
    if (!rows || view.runs.every((run) => run.root && !run.children)) {
      $("tree").append(element("p", { class: "empty" }, "Nothing is cached yet. Whatever is computed stays here for requests that begin alike: try it at the right."));
    }
    runs = drawn;
    const inside = view.runs.filter((run) => !run.root).length;
    $("shown").textContent =
      `${count(inside)} of ${plural(view.nodes, "run")}, ${plural(view.tokens, "token")} in pages of ${view.page_size}` +
      (view.texts ? "" : " · texts are shown on the server's own machine, or with a key (--api-key)");
    performance.clearMeasures("tree");
    performance.measure("tree", "tree");
    performance.clearMarks("tree");
  }

  function look(path) {
    const way = [];
    for (let run = runs.get(path); run; run = run.up) if (run.path !== focus.at(-1)?.path) way.unshift(run);
    focus = path ? [...focus, ...way.map((run) => ({ path: run.path, label: labelOf(run) }))] : [];
    crumbs();
    tick();
  }

  function lookMore(path) {
    const limit = $("limit");
    if (focus.at(-1)?.path === path) limit.selectedIndex = Math.min(limit.selectedIndex + 1, limit.length - 1);
    look(path);
  }

  function crumbs() {
    const back = (length) => () => {
      focus.length = length;
      crumbs();
      tick();
    };
    const parts = focus.map(({ label }, i) => element("button", { type: "button", onclick: back(i + 1) }, label));
    const all = element("button", { type: "button", onclick: back(0) }, "all");
    $("crumbs").replaceChildren(...(parts.length ? [all, ...parts] : []));
  }

  async function select(path) {
    runs.get(current)?.block.classList.remove("current");
    current = path;
    const run = runs.get(path);
    if (!run) return;
    run.block.classList.add("current");
    run.block.focus({ preventScroll: true });
    run.block.scrollIntoView({ block: "nearest", inline: "nearest" });
    open("run");
    const facts = element("dl");
    const fact = (label, value) => facts.append(element("dt", {}, label), element("dd", {}, value));
    if (run.root) fact("namespace", labelOf(run));
    fact("tokens", `${count(run.tokens)}, behind ${count(run.start)}`);
    fact("pages", `${count(run.pages)}, on the device`);
    fact("hits", count(run.hits));
    fact("locks", `${plural(run.locks - run.pins, "running request")}, ${plural(run.pins, "pin")}`);
    fact("last used", run.unused ? `${plural(run.unused, "use")} of the cache ago` : "just now");
    fact("goes on as", plural(run.children, "run"));
    const text = element("pre", {}, run.text || "");
    const below = element("button", { type: "button", onclick: () => look(path) }, "Show only what follows it");
    $("run").replaceChildren(facts, below, text);
    if (run.root || run.text === undefined) return;
    const view = await (await ask(`cache_tree?limit=1&head=2048&node=${encodeURIComponent(path)}`, true)).json().catch(() => null);
    const whole = view?.runs[0];
    if (whole) text.textContent = whole.text + (whole.tokens > 2048 ? `\n… ${count(whole.tokens - 2048)} tokens more` : "");
  }

  /** Arrow keys in the tree: to the run above in the tree, the first below, the one before, the one after. */
  function step(key) {
    const run = runs.get(current);
    if (!run) return select(runs.keys().next().value);
    const beside = run.up ? run.up.below : [...runs.values()].filter((one) => !one.up).sort((a, b) => a.row - b.row);
    const at = beside.indexOf(run);
    const next = { ArrowLeft: run.up, ArrowRight: run.below[0], ArrowUp: beside[at - 1], ArrowDown: beside[at + 1] }[key];
    if (next) select(next.path);
  }

  // ---- requests ----

  function drawRequests(view) {
    const row = (request, running) => {
      const part = (name, tokens) => {
        const bar = element("i", { class: name });
        bar.style.width = `${(100 * Math.max(0, tokens)) / request.limit}%`;
        return bar;
      };
      const done = Math.min(request.computed_tokens, request.prompt_tokens) - request.cached_tokens;
      const meter = running
        ? element("span", { class: "meter" }, part("c", request.cached_tokens), part("p", done), part("g", request.tokens - request.prompt_tokens))
        : request.waits.join(", ") || "room";
      const made = `${count(request.prompt_tokens)} + ${count(request.tokens - request.prompt_tokens)}`;
      const cells = [request.rid, meter, made, seconds(view.time - request.received)];
      return element("tr", {}, ...cells.map((cell) => element("td", {}, cell)));
    };
    const table = (list, running) => {
      const head = ["id", running ? "cached, computed, made" : "waits for", "tokens", "age"];
      return element("table", {}, element("tr", {}, ...head.map((cell) => element("th", {}, cell))), ...list.map((one) => row(one, running)));
    };
    $("requests").replaceChildren(
      element("h2", {}, `${count(view.num_running)} running`), table(view.running, true),
      element("h2", {}, `${count(view.num_waiting)} waiting`), table(view.waiting, false),
    );
  }

  function open(name) {
    for (const tab of document.querySelectorAll("[role=tab]")) {
      const mine = tab.getAttribute("aria-controls") === name;
      tab.setAttribute("aria-selected", mine);
      $(tab.getAttribute("aria-controls")).hidden = !mine;
    }
    if (name === "requests") tick();
  }

  // ---- playground ----

  const EXAMPLES = {
    json_schema: JSON.stringify({ type: "object", properties: { name: { type: "string", maxLength: 40 }, born: { type: "integer" } }, required: ["name", "born"], additionalProperties: false }, null, 1),
    regex: "(yes|no), because [a-z ]{10,60}\\.",
  };
  const talk = [];
  let stop = null;

  function body() {
    const mode = $("mode").value;
    const wish = { stream: true, stream_options: { include_usage: true }, temperature: Number($("temperature").value), max_tokens: Number($("tokens").value) };
    if (mode === "regex") wish.regex = $("constraint").value;
    if (mode === "json_schema") wish.response_format = { type: mode, json_schema: { name: "answer", schema: JSON.parse($("constraint").value) } };
    if (mode === "text") return ["v1/completions", { ...wish, prompt: talk.at(-1).content }];
    const system = $("system").value.trim();
    return ["v1/chat/completions", { ...wish, messages: [...(system ? [{ role: "system", content: system }] : []), ...talk] }];
  }

  function say(role, text) {
    const [words, note] = [document.createTextNode(text), element("small")];
    const block = element("div", { class: `said ${role}` }, words, note);
    $("talk").append(block);
    $("talk").scrollTop = $("talk").scrollHeight;
    return { block, words, note };
  }

  /** The events of a stream of server-sent events. */
  async function* events(response) {
    const decoder = new TextDecoder();
    let rest = "";
    for (const reader = response.body.getReader(); ; ) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + decoder.decode(value, { stream: true })).split("\n\n");
      rest = parts.pop();
      for (const part of parts) if (part.startsWith("data: {")) yield JSON.parse(part.slice(6));
    }
  }

  async function send() {
    if (stop) return stop.abort();
    const text = $("prompt").value;
    if (!text.trim()) return;
    $("prompt").value = "";
    talk.push({ role: "user", content: text });
    say("user", text);
    const { block, words, note } = say("assistant", "");
    stop = new AbortController();
    $("send").textContent = "Stop";
    const began = performance.now();
    let [first, answer, usage, why] = [0, "", null, ""];
    try {
      const [path, wish] = body();
      const options = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(wish), signal: stop.signal };
      for await (const event of events(await ask(path, false, options))) {
        if (event.error) throw new Refused(500, event.error.message);
        const choice = event.choices?.[0];
        const piece = choice?.delta?.content || choice?.delta?.reasoning_content || choice?.text || "";
        if (piece && !first) first = performance.now();
        if (!choice?.delta?.reasoning_content) answer += piece;
        why = choice?.finish_reason || why;
        usage = event.usage || usage;
        words.data += piece;
        $("talk").scrollTop = $("talk").scrollHeight;
      }
    } catch (error) {
      if (error.name !== "AbortError") {
        block.classList.add("failed");
        words.data += error.message;
        if (error.status === 401) wantKey(error.message);
      }
      why = "stopped";
    }
    talk.push({ role: "assistant", content: answer });
    if (usage) {
      const [made, cached] = [usage.completion_tokens, usage.prompt_tokens_details?.cached_tokens || 0];
      const speed = made > 1 ? `, ${((1000 * (made - 1)) / (performance.now() - first)).toFixed(1)} tokens/s` : "";
      note.textContent = `${cached} of ${usage.prompt_tokens} prompt tokens cached · first after ${seconds((first - began) / 1000)} · ${plural(made, "token")}${speed} · ${why}`;
    } else note.textContent = why;
    stop = null;
    $("send").textContent = "Send";
  }

  function fresh() {
    stop?.abort();
    talk.length = 0;
    $("talk").replaceChildren();
  }

  // ---- once a second ----

  let still = false;
  let timer = 0;
  let turn = 0;

  async function tick() {
    clearTimeout(timer);
    const mine = ++turn; // a later one has begun: its answers count
    if (still || document.hidden || $("key").open) return;
    const node = focus.length ? `&node=${encodeURIComponent(focus.at(-1).path)}` : "";
    const wishes = [
      ask("metrics").then(async (response) => mine === turn && figures(parseMetrics(await response.text()))),
      ask(`cache_tree?order=${$("order").value}&limit=${$("limit").value}${node}`, true).then(async (response) => {
        const view = await response.json();
        if (mine === turn) drawTree(view);
      }),
    ];
    if (!$("requests").hidden) wishes.push(ask("requests", true).then(async (response) => drawRequests(await response.json())));
    const failure = (await Promise.allSettled(wishes)).find((result) => result.status === "rejected")?.reason;
    if (mine !== turn) return;
    if (failure?.status === 401) return wantKey(failure.message);
    if (failure?.status === 404 && focus.length) {
      focus.length -= 1; // it was evicted, or split away
      crumbs();
    } else {
      $("banner").hidden = !failure;
      $("banner").textContent = failure ? (failure.status ? failure.message : "The server does not answer; trying again.") : "";
    }
    timer = setTimeout(tick, PERIOD);
    if (!named && !failure) name();
  }

  let named = false;
  async function name() {
    named = true;
    const facts = await (await ask("model_info")).json();
    $("title").textContent = facts.served_model_name;
    document.title = `${facts.served_model_name} · RadixLang`;
    if (!facts.chat_template) [$("mode").value, $("system").hidden] = ["text", true];
    $("playground").toggleAttribute("inert", !facts.is_generation);
  }

  const theme = (to) => (document.documentElement.dataset.theme = to);
  const flip = () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  function pause() {
    still = !still;
    $("pause").setAttribute("aria-pressed", still);
    tick();
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /INPUT|TEXTAREA|SELECT/.test(event.target.tagName)) return;
    const inTree = $("tree").contains(event.target) || event.target === document.body;
    const keys = { p: pause, t: flip, "/": () => $("search").focus() };
    if (inTree && event.key.startsWith("Arrow")) keys[event.key] = () => step(event.key);
    if (inTree && event.key === "Enter" && runs.has(current)) keys.Enter = () => look(current);
    if (keys[event.key]) {
      event.preventDefault();
      keys[event.key]();
    }
  });
  document.addEventListener("visibilitychange", tick);
  for (const name of ["order", "limit"]) $(name).addEventListener("change", tick);
  $("search").addEventListener("input", tick);
  $("pause").addEventListener("click", pause);
  $("theme").addEventListener("click", flip);
  $("ask-key").addEventListener("click", () => wantKey("Without a key, leave both fields empty."));
  for (const tab of document.querySelectorAll("[role=tab]")) tab.addEventListener("click", () => open(tab.getAttribute("aria-controls")));
  $("mode").addEventListener("change", () => {
    const example = EXAMPLES[$("mode").value];
    $("constraint").hidden = !example;
    $("constraint").value = example || "";
    $("system").hidden = $("mode").value === "text";
  });
  $("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  $("prompt").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!stop) send();
  });
  $("fresh").addEventListener("click", fresh);
  theme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  tick();
})();
