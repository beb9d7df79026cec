"use strict";
// Looks at a server once a second while the page is seen: figures from /metrics, the prefix cache from /cache_tree,
// requests from /requests. Texts are other people's: they reach the page as text nodes only.
(() => {
  const MINUTE = 60;
  const ROW = 24;
  const SHAPES = new Set(["svg", "path", "rect", "title"]);
  const $ = (id) => document.getElementById(id);

  function element(tag, attributes = {}, ...children) {
    const made = SHAPES.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
  }

  const count = (n) => Math.round(n).toLocaleString("en").replaceAll(",", "\u202f");
  const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
  const percent = (share) => `${Math.round(100 * share)} %`;
  const seconds = (s) => (s < 1 ? `${Math.round(s * 1000)} ms` : `${s.toFixed(s < 10 ? 2 : 1)} s`);
  const SPECIAL = /<\|[\w-]+\|>|<\/?(?:s|bos|eos|start_of_turn|end_of_turn)>/g;
  const oneLine = (text) => text.replace(SPECIAL, "◆").replace(/\n/g, "↵").replace(/\s+/g, " ");

  // ---- asking the server ----

  const refusal = (status, message) => Object.assign(new Error(message), { status });

  /** A response of this server. `admin`: the route takes the admin key where there is one. */
  async function ask(path, admin = false, options = {}) {
    const key = (admin && sessionStorage.getItem("admin-key")) || sessionStorage.getItem("api-key");
    const headers = { ...options.headers, ...(key ? { authorization: `Bearer ${key}` } : {}) };
    const response = await fetch(path, { ...options, headers, cache: "no-store" });
    if (response.ok) return response;
    const body = await response.json().catch(() => ({}));
    throw refusal(response.status, body.error?.message || `${path} answered with status ${response.status}.`);
  }

  function wantKey(why) {
    if ($("key").open) return;
    $("key-why").textContent = why;
    for (const name of ["api-key", "admin-key"]) $(name).value = sessionStorage.getItem(name) || "";
    $("key").showModal();
  }

  $("key").addEventListener("close", () => {
    for (const name of ["api-key", "admin-key"]) sessionStorage.setItem(name, $(name).value);
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
        const counts = (values[name] ||= new Map());
        counts.set(bound[1], (counts.get(bound[1]) || 0) + Number(number));
      } else values[name] = (values[name] || 0) + Number(number);
    }
    return values;
  }

  /** Counts by bucket since `before`, or ever if nothing came since: [[lower, upper, count], …], not cumulative. */
  function buckets(now, before, name) {
    const [counts, old] = [now, before].map((values) => values[`${name}_bucket`] || new Map());
    const recent = counts.get("+Inf") > (old.get("+Inf") || 0);
    let [lower, sum] = [0, 0];
    return [...counts].map(([bound, ever]) => {
      const upper = bound === "+Inf" ? lower * 2 : Number(bound);
      const upTo = ever - (recent ? old.get(bound) || 0 : 0);
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
  const cards = ["tokens/s", "hit rate", "requests", "KV pool", "first token", "next tokens"].map((label) => {
    const value = element("b");
    const note = element("span");
    const plot = element("svg", { preserveAspectRatio: "none" });
    $("charts").append(element("div", { class: "card" }, element("div", {}, element("span", {}, `${label} `, value), note), plot));
    return { value, note, plot };
  });

  /** Lines over the last two minutes; `series`: [class, values]. */
  function lines(card, value, note, series, most) {
    [card.value.textContent, card.note.textContent] = [value, note];
    card.plot.setAttribute("viewBox", `0 0 ${2 * MINUTE - 1} 100`);
    const top = most || Math.max(1e-9, ...series.flatMap(([, values]) => values));
    const paths = series.flatMap(([name, values]) => {
      const left = 2 * MINUTE - values.length;
      const points = values.map((y, i) => `${left + i} ${98 - 94 * Math.min(1, y / top)}`).join("L");
      const area = element("path", { class: `area ${name}`, d: `M${left} 100L${points}L${2 * MINUTE - 1} 100Z` });
      return [area, element("path", { class: name, d: `M${points}` })];
    });
    card.plot.replaceChildren(...paths);
  }

  function bars(card, parts) {
    const total = parts.reduce((sum, part) => sum + part[2], 0);
    card.value.textContent = total ? seconds(quantile(parts, 0.5)) : "–";
    card.note.textContent = total ? `p95 ${seconds(quantile(parts, 0.95))}` : "";
    const used = parts.map((part) => part[2] > 0);
    const shown = parts.slice(Math.max(0, used.indexOf(true) - 1), used.lastIndexOf(true) + 2);
    const most = Math.max(1, ...shown.map((part) => part[2]));
    card.plot.setAttribute("viewBox", `0 0 ${10 * Math.max(6, shown.length)} 100`);
    const rects = shown.map(([lower, upper, n], i) => {
      const height = n ? Math.max(3, (94 * n) / most) : 1;
      const title = element("title", {}, `${seconds(lower)} to ${seconds(upper)}: ${n}`);
      return element("rect", { class: "blue", x: 10 * i + 1, y: 100 - height, width: 8, height }, title);
    });
    card.plot.replaceChildren(...rects);
  }

  function figures(now) {
    const of = (name) => now[name] || 0;
    // Another server has counted less: what the last one did is not part of its last minute.
    if (["num_requests_total", "generation_tokens_total"].some((name) => of(name) < (history.at(-1)?.[name] || 0))) {
      history.length = 0;
      named = false;
    }
    history.push(now);
    if (history.length > 2 * MINUTE) history.shift();
    const before = history.length > MINUTE ? history[history.length - MINUTE - 1] : {};
    const track = (...names) => history.map((values) => names.reduce((sum, name) => sum + (values[name] || 0), 0));
    const pool = of("max_total_num_tokens") || 1;
    const used = track("num_used_tokens");
    const running = track("num_running_reqs");
    const [rate, hits] = [track("gen_throughput"), track("cache_hit_rate")];
    const [all, held] = [track("num_running_reqs", "num_queue_reqs"), track("num_used_tokens", "kv_evictable_tokens")];
    lines(cards[0], count(rate.at(-1)), `${count(of("generation_tokens_total"))} made`, [["blue", rate]]);
    lines(cards[1], percent(hits.at(-1)), `${count(of("cached_tokens_total"))} cached`, [["green", hits]], 1);
    lines(cards[2], count(running.at(-1)), `${count(of("num_queue_reqs"))} waiting`, [["grey", all], ["blue", running]]);
    lines(cards[3], percent(held.at(-1) / pool), `${count(pool)} tokens`, [["green", held], ["blue", used]], pool);
    bars(cards[4], buckets(now, before, "time_to_first_token_seconds"));
    bars(cards[5], buckets(now, before, "inter_token_latency_seconds"));
    const facts = [
      [plural(of("num_requests_total"), "request"), "served"],
      [count(used.at(-1)), "tokens in use"],
      [count(of("kv_evictable_tokens")), "only cached"],
      ...[["kv_pinned_tokens", "pinned"], ["hicache_host_used_tokens", "in host memory"], ["evicted_tokens_total", "evicted"]]
        .filter(([name]) => of(name))
        .map(([name, label]) => [count(of(name)), label]),
    ];
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
      run.width = run.root ? 26 : Math.min(480, 200 + 32 * Math.log2(1 + run.pages));
      run.left = run.up ? run.up.left + run.up.width + 3 : 4;
    }
    for (const run of [...list].reverse()) {
      run.rows = Math.max(1, run.below.reduce((sum, child) => sum + child.rows, 0) + (run.more > 0));
    }
    const newest = (a, b) => b.id - a.id;
    const stack = (siblings, row) => {
      for (const run of siblings.sort(newest)) {
        run.row = row;
        row += run.rows;
      }
      return row; // the first that is free
    };
    stack(list.filter((run) => !run.up), 0);
    for (const run of list) run.moreRow = stack(run.below, run.row);
  }

  function put(node, left, row, width, rows) {
    const place = { transform: `translate(${left}px, ${4 + row * ROW}px)`, width: `${width}px`, height: `${rows * ROW - 3}px` };
    Object.assign(node.style, place);
  }

  function blockOf({ path }) {
    const inner = element("div", { class: "in" }, element("span", { class: "text" }), element("span", { class: "figures" }));
    const acts = { onclick: () => select(path), ondblclick: () => look(path) };
    const block = element("div", { role: "treeitem", tabindex: -1, ...acts }, inner);
    if (runs.size) block.animate([{ opacity: 0 }, { opacity: 1 }], 300);
    $("tree").append(block);
    return block;
  }

  function drawTree(view) {
    const began = performance.now();
    arrange(view.runs);
    const hottest = Math.log(1 + Math.max(1, ...view.runs.map((run) => run.hits)));
    const drawn = new Map();
    const stubs = [];
    const wanted = $("search").value.trim().toLowerCase();
    for (const run of view.runs) {
      const before = runs.get(run.path);
      const block = (run.block = before?.block || blockOf(run));
      drawn.set(run.path, run);
      put(block, run.left, run.row, run.width, run.rows);
      const tall = run.rows > 1 && !run.root;
      const reading = run.locks > run.pins && !run.root;
      const label = labelOf(run);
      const is = { run: true, root: run.root, tall, reading, pinned: run.pins && !run.root, current: run.path === current };
      is.dim = wanted && !label.toLowerCase().includes(wanted);
      block.className = Object.keys(is).filter((name) => is[name]).join(" ");
      block.style.setProperty("--heat", run.root ? 0 : (Math.log(1 + run.hits) / hottest).toFixed(2));
      const [text, facts] = block.firstChild.children;
      if (text.textContent !== label) text.textContent = label;
      text.style.webkitLineClamp = tall ? Math.max(1, Math.floor((run.rows * ROW - 26) / 16)) : "";
      const [hits, readers] = [run.hits && plural(run.hits, "hit"), reading && `${run.locks - run.pins} reading`];
      facts.textContent = [count(run.tokens), hits, readers, run.pins && "pinned", run.copied && "in host memory"].filter(Boolean).join(" · ");
      block.title = `${plural(run.tokens, "token")} in ${plural(run.pages, "page")} behind ${count(run.start)}`;
      if (before && run.hits > before.hits) {
        block.animate([{ backgroundColor: "var(--cached)" }, {}], 900);
      }
      if (run.more > 0) {
        const acts = { type: "button", class: "more", onclick: () => look(run.path) };
        const stub = element("button", acts, `${count(run.more)} more`);
        put(stub, run.left + run.width + 3, run.moreRow, 120, 1);
        stubs.push(stub);
      }
    }
    for (const [path, run] of runs) if (!drawn.has(path)) run.block.remove();
    for (const old of $("tree").querySelectorAll(".more, .empty")) old.remove();
    $("tree").append(...stubs);
    const empty = "Nothing is cached yet. What is computed stays here for requests that begin alike: try it at the right.";
    if (!view.runs.length) $("tree").append(element("p", { class: "empty" }, empty));
    runs = drawn;
    const inside = view.runs.filter((run) => !run.root).length;
    $("shown").textContent =
      `${count(inside)} of ${plural(view.nodes, "run")}, ${plural(view.tokens, "token")} in pages of ${view.page_size}` +
      (view.texts ? "" : " · texts are shown on the server's own machine, or with a key (--api-key)");
    $("tree").dataset.drawn = (performance.now() - began).toFixed(1); // milliseconds
  }

  /** Show only what is below this run; if that is so already, more of it. */
  function look(path) {
    const limit = $("limit");
    if (focus.at(-1)?.path === path) limit.selectedIndex = Math.min(limit.selectedIndex + 1, limit.length - 1);
    const way = [];
    for (let run = runs.get(path); run; run = run.up) if (run.path !== focus.at(-1)?.path) way.unshift(run);
    focus = [...focus, ...way.map((run) => ({ path: run.path, label: labelOf(run) }))];
    crumbs();
  }

  function crumbs() {
    const back = (length) => ((focus = focus.slice(0, length)), crumbs());
    const parts = [{ label: "all" }, ...focus].map(({ label }, i) => element("button", { type: "button", onclick: () => back(i) }, label));
    $("crumbs").replaceChildren(...(focus.length ? parts : []));
    tick();
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
    fact("pages", `${count(run.pages)}, on the device${run.copied ? " and in host memory" : ""}`);
    fact("hits", count(run.hits));
    fact("locks", `${plural(run.locks - run.pins, "running request")}, ${plural(run.pins, "pin")}`);
    fact("last used", run.unused ? `${plural(run.unused, "use")} of the cache ago` : "just now");
    fact("goes on as", plural(run.children, "run"));
    const text = element("pre", {}, run.text || "");
    const below = element("button", { type: "button", onclick: () => look(path) }, "Show only what follows it");
    $("run").replaceChildren(facts, below, text);
    if (run.root || run.text === undefined) return;
    const response = await ask(`cache_tree?limit=1&head=2048&node=${path}`, true).catch(() => null);
    const whole = (await response?.json())?.runs[0]; // unless it is gone by now
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
    const table = (head, list) => {
      const rows = [head, ...list].map((cells) => element("tr", {}, ...cells.map((cell) => element("td", {}, cell))));
      return element("table", {}, ...rows);
    };
    const made = (one) => `${count(one.prompt_tokens)} + ${count(one.tokens - one.prompt_tokens)}`;
    const age = (one) => seconds(view.time - one.received);
    const meter = (one) => {
      const computed = Math.min(one.computed_tokens, one.prompt_tokens) - one.cached_tokens;
      const parts = { cached: one.cached_tokens, computed, made: one.tokens - one.prompt_tokens };
      const bars = Object.entries(parts).map(([name, tokens]) => {
        const bar = element("i", { class: name });
        bar.style.width = `${(100 * Math.max(0, tokens)) / one.limit}%`;
        return bar;
      });
      return element("span", { class: "meter" }, ...bars);
    };
    $("requests").replaceChildren(
      element("h2", {}, `${count(view.num_running)} running`),
      table(["id", "cached, computed, made", "tokens", "age"], view.running.map((one) => [one.rid, meter(one), made(one), age(one)])),
      element("h2", {}, `${count(view.num_waiting)} waiting`),
      table(["id", "for", "tokens", "age"], view.waiting.map((one) => [one.rid, one.waits.join(", ") || "room", made(one), age(one)])),
    );
  }

  const tabs = document.querySelectorAll("[role=tab]");
  function open(name) {
    for (const tab of tabs) {
      const mine = tab.getAttribute("aria-controls") === name;
      tab.setAttribute("aria-selected", mine);
      $(tab.getAttribute("aria-controls")).hidden = !mine;
    }
    if (name === "requests") tick();
  }

  // ---- playground ----

  const SCHEMA = { type: "object", properties: { name: { type: "string", maxLength: 40 }, born: { type: "integer" } } };
  const EXAMPLES = {
    json_schema: JSON.stringify({ ...SCHEMA, required: ["name", "born"], additionalProperties: false }, null, 1),
    regex: "(yes|no), because [a-z ]{10,60}\\.",
  };
  const talk = [];
  let stop = null;

  function body() {
    const mode = $("mode").value;
    const [temperature, max_tokens] = [Number($("temperature").value), Number($("tokens").value)];
    const wish = { stream: true, stream_options: { include_usage: true }, temperature, max_tokens };
    if (mode === "regex") wish.regex = $("constraint").value;
    if (mode === "json_schema") wish.json_schema = JSON.parse($("constraint").value);
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
      const headers = { "content-type": "application/json" };
      const options = { method: "POST", headers, body: JSON.stringify(wish), signal: stop.signal };
      for await (const event of events(await ask(path, false, options))) {
        if (event.error) throw refusal(500, event.error.message);
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
      const wait = first ? ` · first after ${seconds((first - began) / 1000)}` : "";
      note.textContent = `${cached} of ${usage.prompt_tokens} prompt tokens cached${wait} · ${plural(made, "token")}${speed} · ${why}`;
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

  let [still, timer, turn, last] = [false, 0, 0, null];

  async function tick() {
    clearTimeout(timer);
    const mine = ++turn; // a later one has begun: its answers count
    if (still || document.hidden || $("key").open) return;
    const node = focus.length ? `&node=${focus.at(-1).path}` : "";
    const wishes = [
      ask("metrics").then(async (response) => mine === turn && figures(parseMetrics(await response.text()))),
      ask(`cache_tree?order=${$("order").value}&limit=${$("limit").value}${node}`, true).then(async (response) => {
        const view = await response.json();
        if (mine === turn) drawTree((last = view));
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
      $("banner").textContent = failure?.status ? failure.message : "The server does not answer; trying again.";
    }
    if (failure && !failure.status) named = false; // whoever answers next may be another
    timer = setTimeout(tick, 1000);
    if (!named && !failure) name().catch(() => {}); // the next turn tries again, and says why
  }

  let named = false;
  async function name() {
    const facts = await (await ask("model_info")).json();
    named = true;
    $("title").textContent = facts.served_model_name;
    document.title = `${facts.served_model_name} · RadixLang`;
    if (!facts.chat_template) [$("mode").value, $("system").hidden] = ["text", true];
    $("playground").toggleAttribute("inert", !facts.is_generation);
  }

  let dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const flip = () => (document.documentElement.style.colorScheme = (dark = !dark) ? "dark" : "light");
  function pause() {
    $("pause").setAttribute("aria-pressed", (still = !still));
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
  for (const name of ["order", "limit"]) $(name).addEventListener("input", tick);
  $("search").addEventListener("input", () => last && drawTree(last));
  const clicks = { pause, theme: flip, fresh, "ask-key": () => wantKey("Without a key, leave both fields empty.") };
  for (const [name, act] of Object.entries(clicks)) $(name).addEventListener("click", act);
  for (const tab of tabs) tab.addEventListener("click", () => open(tab.getAttribute("aria-controls")));
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
  tick();
})();
