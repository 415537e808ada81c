// Shows the views that the instance sends. Every text is put in as text: topics' names, errors and
// records are users' data.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const PHASES = ["read", "decode", "columns", "operators", "write", "gate", "offsets", "delivery", "commit", "apply", "plan", "calls", "sinks"];
const EVERY_MS = 2000;
const MERMAID = "page/mermaid-12.0.0.js";
const at = (id) => document.getElementById(id);
// Whole: an address that was opened with a password in it is no base for what is fetched.
const there = (path) => location.origin + location.pathname.replace(/[^/]*$/, "") + path;

function el(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

const known = (value) => value !== null && value !== undefined;
const whole = (value) => (known(value) ? Math.round(value).toLocaleString("en") : "?");
const rate = (value) => (value ? `${value < 10 ? value.toFixed(1) : whole(value)}/s` : "");
const percent = (share) => `${Math.round(100 * share)} %`;
const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");

function size(bytes) {
  let unit = 0;
  while (bytes >= 1024 && unit < 4) { bytes /= 1024; unit += 1; }
  return `${unit ? bytes.toFixed(1) : bytes} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}

function seconds(value) {
  if (!known(value)) return "";
  if (value < 99.5) return `${Math.round(value)} s`;
  const minutes = Math.round(value / 60);
  return minutes < 100 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

const lasted = (value) => (value < 10 ? `${value.toFixed(1)} s` : seconds(value));

// A colour and its word, which stay on one line.
function keyed(kind, text) {
  const made = el("span", null, "keyed");
  made.append(el("span", null, `key ${kind}`), text);
  return made;
}

// columns: [head, number?]; a cell is a text or an element.
function fill(section, columns, rows, empty) {
  const table = at(section).querySelector("table");
  const head = el("tr");
  for (const [name, number] of columns) head.append(el("th", name, number ? "number" : ""));
  const lines = rows.map((cells) => {
    const line = el("tr");
    cells.forEach((cell, index) => {
      const one = cell instanceof Node ? el("td") : el("td", cell);
      if (cell instanceof Node) one.append(cell);
      if (columns[index][1]) one.className = "number";
      line.append(one);
    });
    return line;
  });
  const none = el("tr");
  none.append(el("td", empty));
  table.replaceChildren(...(lines.length ? [head, ...lines] : [none]));
}

const hint = (section, text) => { at(section).querySelector(".hint").textContent = text; };
const more = (number) => (number ? ` ${number.toLocaleString("en")} more are not shown.` : "");

function line(svg, caption, values, highest, text) {
  const most = Math.max(1, highest || 0);
  const step = values.length > 1 ? 300 / (values.length - 1) : 0;
  let path = "", drawn = false;
  values.forEach((value, index) => {
    if (!known(value)) { drawn = false; return; }
    path += `${drawn ? "L" : "M"}${(index * step).toFixed(1)} ${(58 - 56 * value / most).toFixed(1)}`;
    drawn = true;
  });
  const made = document.createElementNS(SVG, "path");
  made.setAttribute("d", path);
  svg.replaceChildren(made);
  caption.textContent = `${text}, at most ${whole(highest)} in the last hour`;
}

function trend(view, instance, alone) {
  const here = alone ? "" : " here";
  const captions = document.querySelectorAll("#trend figcaption");
  line(at("lag-line"), captions[0], view.lag, view.most_lag, `Lag${here}: ${whole(instance.lag)} records`);
  line(at("rate-line"), captions[1], view.rate, view.most_rate, `Throughput${here}: ${whole(instance.rate)} records/s`);
}

// Mermaid is large: it is asked for when its place comes into sight, behind the first view.
function drawInSight() {
  const sight = new IntersectionObserver((seen) => {
    if (!seen.some((one) => one.isIntersecting)) return;
    sight.disconnect();
    draw();
  }, { rootMargin: "200px" });
  sight.observe(at("topology"));
}

async function draw() {
  const place = document.querySelector("#topology .wide");
  try {
    const drawing = await asked("page/drawing");
    await loaded(there(MERMAID));
    mermaid.initialize({
      startOnLoad: false, securityLevel: "strict", suppressErrorRendering: true, htmlLabels: false, look: "classic", layout: "dagre",
      theme: matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "neutral", themeVariables: { fontSize: "13px" },
      maxTextSize: drawing.text.length + 1, maxEdges: drawing.text.length,
      flowchart: { useMaxWidth: false, wrappingWidth: 2000, rankSpacing: 40, subGraphTitleMargin: { top: 2, bottom: 12 } },
    });
    place.textContent = drawing.text;
    await mermaid.run({ nodes: [place] });
    for (const group of place.querySelectorAll("g[id]")) mark(group, drawing.boxes);
  } catch (error) {
    place.textContent = `It cannot be drawn: ${error.message}`;
  }
}

function loaded(address) {
  return new Promise((resolve, reject) => {
    const script = el("script");
    script.src = address;
    script.addEventListener("load", resolve);
    script.addEventListener("error", () => reject(new Error(`${MERMAID} does not come`)));
    document.head.append(script);
  });
}

// The text's ids stand between Mermaid's own, as in mermaid-1-flowchart-n0_1-2. In its labels escaped characters are numbers.
function mark(group, boxes) {
  const found = group.id.split("-").find((part) => Object.hasOwn(boxes, part));
  if (!found) return;
  const { tip, ...names } = boxes[found];
  Object.assign(group.dataset, names);
  if (!names.sub) group.querySelector("text tspan").textContent = names.node || names.topic;
  if (!tip) return;
  const title = document.createElementNS(SVG, "title");
  title.textContent = tip;
  group.prepend(title);
}

// Below the box, or below all boxes of a sub-topology.
function said(group, text, waits) {
  let label = group.querySelector("text.said");
  if (!label) {
    const box = group.getBBox();
    label = document.createElementNS(SVG, "text");
    label.setAttribute("x", box.x + box.width / 2);
    label.setAttribute("y", box.y + box.height + 11);
    group.append(label);
  }
  label.setAttribute("class", waits ? "said waits" : "said");
  label.textContent = text;
}

function topology(view) {
  for (const group of document.querySelectorAll("#topology g[data-node]")) {
    const node = view.nodes[group.dataset.node] || {};
    const parts = [];
    if (known(node.rate)) parts.push(rate(node.rate) || "0/s");
    if (node.dropped) parts.push(`${whole(node.dropped)} dropped`);
    said(group, parts.join(", "), Boolean(node.dropped));
  }
  for (const group of document.querySelectorAll("#topology g[data-topic]")) {
    const lag = view.topics[group.dataset.topic];
    said(group, known(lag) ? `${whole(lag)} wait` : "", lag > 0);
  }
  for (const group of document.querySelectorAll("#topology g[data-sub]")) {
    const sub = view.subs[group.dataset.sub];
    said(group, sub ? `${sub.active} active here, their busiest thread ${percent(sub.busy)}` : "not active here", false);
  }
}

function strip(row, begin, end) {
  const made = el("span", null, "strip");
  row.spans.forEach(([since, kind], index) => {
    const until = index + 1 < row.spans.length ? row.spans[index + 1][0] : end;
    const from = Math.max(since, begin);
    if (until <= from || !kind) return;
    const part = el("i", null, `k-${kind}`);
    part.style.left = `${100 * (from - begin) / Math.max(1, end - begin)}%`;
    part.style.width = `${100 * (until - from) / Math.max(1, end - begin)}%`;
    part.title = `${kind} from ${clock(since)}`;
    made.append(part);
  });
  return made;
}

function tasks(view, hosts, instance) {
  const counts = Object.entries(view.counts).map(([kind, count]) => `${count.toLocaleString("en")} ${kind}`);
  const kinds = new Set(view.rows.flatMap((row) => row.spans.map((span) => span[1])).filter(Boolean));
  at("kinds").replaceChildren(...[...kinds].map((kind) => keyed(`k-${kind}`, kind)));
  hint("tasks", `${counts.join(", ") || "None here"}.${more(view.more)}` +
    (hosts.silent > 0 ? ` ${hosts.silent} of ${instance.members} instances ${hosts.silent > 1 ? "do" : "does"} not say where ${hosts.silent > 1 ? "they are" : "it is"} (application.server).` : ""));
  const others = hosts.rows.map((host) => host.host);
  const columns = [["task"], ["is"], [`since ${clock(view.begin_ms)}`], ["lag", true], ["records/s", true], ["left", true], ["thread", true],
    ...others.map((host) => [host]), ["why"]];
  fill("tasks", columns, view.rows.map((row) => [
    row.task,
    (row.kind === "restoring" || row.kind === "warm-up" ? `${row.kind}${known(row.percent) ? ` ${row.percent} %` : ""}` : row.kind) + (row.host ? ` at ${row.host}` : ""),
    strip(row, view.begin_ms, instance.now_ms),
    whole(row.lag), rate(row.rate), row.remaining_s ? seconds(row.remaining_s) : "", known(row.thread) ? row.thread : "",
    ...others.map((host) => (hosts.tasks[row.task] || {})[host] || ""),
    row.why,
  ]), "No task here.");
}

function lags(view) {
  const silent = view.silent_s >= 1 ? `The brokers have not answered for ${seconds(view.silent_s)}: as of then. ` : "";
  hint("lags", `${silent}The worst first.${view.more ? ` ${whole(view.more)} more have ${whole(view.more_lag)} together.` : ""}`);
  const grows = (row) => (row.growth ? `${row.growth > 0 ? "+" : "-"}${rate(Math.abs(row.growth))}` : "");
  const spread = view.rows.some((row) => row.host);
  fill("lags", [["topic"], ["partition", true], ["lag", true], ["grows by", true], ...(spread ? [["at"]] : [])],
    view.rows.map((row) => [row.topic, row.partition, whole(row.lag), grows(row), ...(spread ? [row.host || "here"] : [])]),
    "No active task runs here.");
  at("times").hidden = !view.times.length;
  fill("times", [["event time of sub-topology", true], ["is"], ["waits for"], ["which is behind by"], ["and got on last at"]],
    view.times.map((row) => [row.subtopology, known(row.ms) ? new Date(row.ms).toISOString() : "not known yet", row.held_by || "nothing",
      row.held_by ? seconds(row.behind_s) : "", known(row.since_ms) ? clock(row.since_ms) : ""]), "None.");
  at("misplaced").hidden = !view.misplaced.length;
  fill("misplaced", [["topic with keys in other partitions"], ["keys", true], ["of those looked at", true], ["what to do"]],
    view.misplaced.map((row) => [row.topic, whole(row.misplaced), whole(row.checked), row.cure]), "No key.");
}

function connectors(view) {
  at("connectors").hidden = !view.rows.length;
  hint("connectors", `Sinks outside Kafka; everflow connect pauses, resumes and restarts them.${more(view.more)}`);
  const wanted = (row) => (!row.paused ? "running" : row.paused === row.of ? "paused" : `paused, as ${row.paused} of ${row.of} instances know`);
  fill("connectors", [["connector"], ["is"], ["wanted"], ["tasks"], ["lag", true], ["rows", true], ["errors", true], ["last error"]],
    view.rows.map((row) => [
      row.connector, `${row.kind}, ${row.what}`, wanted(row),
      Object.entries(row.states).map(([state, count]) => `${count} ${state}`).join(", ") || "none here",
      whole(row.lag), whole(row.rows), whole(row.errors),
      row.error ? el("span", `${clock(row.failed_ms)}${row.host ? ` at ${row.host}` : ""}: ${row.error}`, row.states.FAILED ? "bad" : "") : "",
    ]), "");
}

function threads(view) {
  const shown = view.rows.map((row) => {
    const block = el("div");
    block.append(el("p", `Thread ${row.number}: ${row.alive ? `busy ${percent(row.busy)}` : "ended"}, ${row.tasks} tasks, ` +
      `${row.batches.toFixed(1)} batches/s` + (known(row.mean_ms) ? `, ${row.mean_ms.toFixed(1)} ms each (at most ${row.most_ms.toFixed(1)})` : "")));
    const bar = el("div", null, "bar");
    const keys = el("p", null, "hint");
    PHASES.forEach((phase, index) => {
      const share = row.phases[phase];
      if (!share) return;
      const part = el("span", null, `p${index}`);
      part.style.width = `${100 * share}%`;
      part.title = `${phase} ${(100 * share).toFixed(1)} %`;
      bar.append(part);
      keys.append(keyed(`p${index}`, part.title));
    });
    block.append(bar, keys);
    if (row.trouble) block.append(el("p", row.trouble, "bad"));
    return block;
  });
  at("threads").lastElementChild.replaceChildren(...(shown.length ? shown : [el("p", "No stream thread runs.")]));
}

function log(section, events, empty) {
  const shown = events.map((event) => {
    const item = el("li", null, event.level === "INFO" ? "" : event.level === "WARNING" ? "busy" : "bad");
    const text = el("span", event.text + (event.times > 1 ? ` (${whole(event.times)} times)` : ""));
    item.append(el("time", clock(event.at_ms)), text);
    return item;
  });
  at(section).querySelector("ol").replaceChildren(...(shown.length ? shown : [el("li", empty)]));
}

function rebalances(view) {
  hint("rebalances", `The newest first, as this instance saw them; /rebalances has them whole.${more(view.more)}`);
  fill("rebalances", [["at"], ["why"], ["instances", true], ["tasks here"], ["moved in the group"], ["until all ran", true], ["longest gap", true], ["restored", true]],
    view.rows.map((row) => [
      clock(row.began_ms), row.why, `${known(row.before) ? `${row.before} to ` : ""}${known(row.members) ? row.members : "?"}`,
      row.here.join("; ") || "no change", row.moved.join("; "),
      known(row.duration_s) ? lasted(row.duration_s) : row.outcome, known(row.gap_s) ? lasted(row.gap_s) : "",
      row.records ? `${whole(row.records)} records, ${size(row.bytes)}` : "",
    ]), "The instance has not joined yet.");
}

function stores(view) {
  const free = known(view.free) ? `, ${size(view.free)} left there` : "";
  hint("stores", `${size(view.bytes)} on disk${free}, the largest first.${more(view.more)}`);
  fill("stores", [["store"], ["task"], ["of"], ["disk", true], ["changes/s", true]],
    view.rows.map((row) => [row.store, row.task, row.kind, size(row.bytes), rate(row.puts)]), "No store here.");
}

function letters(view) {
  hint("letters", `${whole(view.written)} dead letters written since the start${view.rate ? `, ${rate(view.rate)} now` : ""}. What failed and was left out, by cause (everflow dlq show has a letter whole).${more(view.more)}`);
  fill("letters", [["error"], ["node"], ["topic"], ["records", true], ["the last of them"]],
    view.causes.map((row) => [row.exception, row.node, row.topic, whole(row.records), row.sample]), "No record failed.");
  fill("dropped", [["node"], ["why"], ["records", true]], view.dropped.map((row) => [row.node, row.reason, whole(row.records)]),
    "No record was dropped.");
}

function desk(view) {
  const causes = at("letters-found").querySelector("tr");
  at("letters-read").hidden = !view.topic;
  at("letters-topic").textContent = view.why ? `The dead letter topic: ${view.why}.` : causes ? "" :
    `The dead letter topic is ${view.topic}: it is read when you ask for it.`;
}

async function asked(path, content) {
  const answer = await fetch(there(path), content === undefined ? {} :
    { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(content) });
  if (!answer.ok) throw new Error((await answer.text()).trim());
  return answer.json();
}

function sample(text) {
  const made = el("details");
  made.append(el("summary", "a sample"), el("pre", text));
  return made;
}

// It writes records: the first press asks with which times, the second does it.
function replayer(row) {
  const made = el("button", `Replay ${whole(row.open)}`), now = el("button", "With the present time?"), both = el("span");
  made.disabled = !row.open;
  now.hidden = true;
  const write = async (timestamp) => {
    made.disabled = now.disabled = true;
    await lettersDo(async () => {
      const done = await asked("page/replay", { exception: row.exception, node: row.node, topic: row.topic, timestamp });
      await lettersRead();
      return `${whole(done.replayed)} replayed into ${row.topic}, ${whole(done.left)} left to replay.${done.error ? ` Then it failed: ${done.error}` : ""}`;
    });
  };
  made.addEventListener("click", () => {
    if (!now.hidden) return write("record");
    now.hidden = false;
    made.textContent = `Write ${whole(row.open)} again into ${row.topic}, with their old times?`;
    if (row.late) both.append(el("p", `${whole(row.late)} of them ${row.late === 1 ? "is" : "are"} older than the newest record of the topic: a window, join or ttl that is over by then drops them as late.`, "hint"));
    return undefined;
  });
  now.addEventListener("click", () => write("now"));
  both.append(made, now);
  return both;
}

async function lettersRead() {
  const found = await asked("page/letters");
  fill("letters-found", [["error"], ["node"], ["from"], ["letters", true], ["the last one"], ["not replayed"]],
    found.causes.map((row) => [row.exception, row.node, row.topic, whole(row.letters), sample(row.sample), replayer(row)]),
    `${found.topic} has no letter.`);
  return found.earlier ? `${whole(found.earlier)} earlier records of the topic were not looked at: everflow dlq has them.` : "";
}

async function lettersDo(work) {
  at("letters-read").disabled = true;
  at("letters-said").textContent = "...";
  try {
    at("letters-said").textContent = await work();
  } catch (error) {
    at("letters-said").textContent = error.message;
  } finally {
    at("letters-read").disabled = false;
  }
}

function transactions(view) {
  const failed = Object.entries(view.failed).map(([kind, count]) => [`run again: ${kind}`, whole(count)]);
  fill("transactions", [["what"], ["how many", true]], [
    ["micro-batches committed", `${whole(view.committed)}${view.rate ? ` (${rate(view.rate)})` : ""}`],
    ["a commit takes", known(view.mean_ms) ? `${view.mean_ms.toFixed(1)} ms, at most ${view.most_ms.toFixed(1)} ms` : "?"],
    ["aborted, as the group moved on", whole(view.aborted)], ...failed,
    ["open transactions of instances that were gone, ended here", whole(view.ended_of_others)],
    ["rebalances", whole(view.rebalances)],
  ], "");
  writers(view);
}

function openFor(row) {
  if (!known(row.open_s)) return "?";
  return row.open_s ? `for ${lasted(row.open_s)} (${row.state})` : "no";
}

// Of what the brokers told last.
function writers(view) {
  const old = known(view.told_s) && view.told_s >= 15 ? ` The brokers told it ${seconds(view.told_s)} ago.` : "";
  const transactional = view.threads.some((row) => row.transactional_id);
  hint("transactions", transactional ? `Each stream thread has a transactional id; the one that is open now is as the brokers have it.${old}` : "Nothing is written in transactions here.");
  fill("writers", [["thread"], ["transactional id"], ["open"], ["last commit"], ["aborted, by cause"], ["fenced", true], ["epoch renewed", true]],
    view.threads.map((row) => [row.thread, row.transactional_id, row.transactional_id ? openFor(row) : "", known(row.commit_s) ? `${lasted(row.commit_s)} ago` : "none yet",
      Object.entries(row.aborted).map(([cause, count]) => `${cause} ${whole(count)}`).join(", "), whole(row.fenced), whole(row.renewed)]), "No stream thread runs.");
  at("held").hidden = at("held-said").hidden = !transactional;
  at("held-said").textContent = `What open transactions, of anybody, hold back from readers of committed records, the longest first.${more(view.more)}`;
  fill("held", [["topic"], ["partition", true], ["records held back", true], ["for at least", true], ["from offset", true]],
    view.held_back.map((row) => [row.topic, row.partition, whole(row.records), lasted(row.held_s), row.stable]),
    known(view.told_s) ? "Nothing is held back." : "Not known yet.");
}

// What an instance says of itself, and how old that is.
function instances(view) {
  const others = view.here - 1;
  const gone = view.rows.length - view.here;
  const left = gone ? ` ${gone} ${gone > 1 ? "have" : "has"} left in the last hour.` : "";
  hint("instances", (others ? `${view.told} of ${view.here} tell how they do: ${whole(view.lag)} records wait, ${whole(view.rate)} records/s in all. They are asked while somebody reads.` :
    "No other instance says where it is (application.server).") + left);
  const spread = new Set(view.rows.map((row) => row.program).filter(Boolean)).size > 1;
  fill("instances", [["instance"], ["state"], ["how it does"], ...(spread ? [["everflow, topology"]] : []), ["lag", true], ["records/s", true], ["busy", true], ["active", true], ["copies", true], ["as of"]],
    view.rows.map((row) => [
      row.host + (row.own ? " (this one)" : ""), known(row.state) ? row.state + (row.state_reason ? `: ${row.state_reason}` : "") : "?",
      known(row.said) ? el("span", row.said.text, row.said.tone) : "", ...(spread ? [row.program || ""] : []),
      known(row.state) && row.state !== "gone" ? whole(row.lag) : "", rate(row.rate),
      known(row.busy) ? percent(row.busy) : "", known(row.active) ? row.active : "", known(row.copies) ? row.copies : "",
      row.error ? el("span", `${known(row.age_s) ? `${seconds(row.age_s)} ago: ` : ""}${row.error}`, "bad") : row.own ? "now" : known(row.age_s) ? `${seconds(row.age_s)} ago` : "not asked yet",
    ]), "");
}

function instance(view) {
  const parts = [view.application_id, view.client_id, view.state_reason ? `${view.state}: ${view.state_reason}` : view.state, view.ready.ok ? "ready" : view.state_reason ? "not ready" : `not ready: ${view.ready.why}`];
  if (known(view.members)) parts.push(`${view.members} instance${view.members === 1 ? "" : "s"} in the group`);
  if (known(view.desired)) parts.push(`${view.desired} desired`);
  parts.push(`${whole(view.application_tasks)} tasks in all`, `everflow ${view.version}`);
  if (view.topology) parts.push(`topology ${view.topology}`);
  if (view.program) parts.push(view.program);
  if (view.started_ms) parts.push(`since ${new Date(view.started_ms).toLocaleString("en-GB")}`);
  parts.push(clock(view.now_ms));
  at("instance").textContent = parts.join(" · ");
  document.title = `${view.application_id}: ${view.state}`;
}

function show(view) {
  if (view.error) return away(`The instance cannot be looked at (${view.error}).`);
  at("link").hidden = true;
  at("verdict").textContent = view.verdict.text;
  at("verdict").className = view.verdict.tone;
  instance(view.instance);
  instances(view.instances);
  trend(view.trend, view.instance, view.instances.here === 1);
  topology(view.topology);
  tasks(view.tasks, view.hosts, view.instance);
  lags(view.lags);
  connectors(view.connectors);
  threads(view.threads);
  log("assignment", view.assignment, "Nothing has moved since the start.");
  rebalances(view.rebalances);
  stores(view.stores);
  letters(view.letters);
  desk(view.desk);
  transactions(view.transactions);
  log("events", view.events, "Nothing was said.");
  if (!document.body.dataset.shown) drawInSight();
  document.body.dataset.shown = "yes";
  return undefined;
}

function away(text) {
  at("link").textContent = `${text} What stands below is from before.`;
  at("link").className = "bad";
  at("link").hidden = false;
}

async function listen() {
  try {
    show(await asked("page/view"));
  } catch {
    away("No connection to the instance: has it ended?");
  }
  setTimeout(listen, EVERY_MS);
}

at("letters-read").addEventListener("click", () => lettersDo(lettersRead));
listen();
