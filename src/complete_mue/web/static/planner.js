// The planner's page: the address is the state, the server computes, this file shows.
'use strict';

const $ = (id) => document.getElementById(id);
const el = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
};

// ---------------------------------------------------------------- fields

const LAYOUT_HINT = 'dense, or XeYa[Gg][Zs]: experts, active, groups, shared';
const BATCH_HINT = '1048576, 1e6, 4M (millions) or 4Mi (× 1024²)';
const FIELDS = {
  shape: [
    ['feed_forward', 'Layout', 'wide', LAYOUT_HINT],
    ['width', 'Width d'],
    ['depth', 'Layers L'],
    ['expansion', 'Expansion H/d'],
    ['expert_width', 'Expert width h'],
    ['dense_layers', 'Dense layers'],
    ['batch_tokens', 'Batch B, tokens', '', BATCH_HINT],
    ['steps', 'Steps T'],
  ],
  r: [
    ['lr', 'Learning rate'],
    ['weight_decay', 'Weight decay'],
    ['init_std', 'Init std'],
    ['betas', 'Betas'],
  ],
  t: [],
  more: { r: [['eps', 'AdamW eps'], ['head_dim', 'Head size'], ['route_scale', 'Route scale it ran with']], t: [['head_dim', 'Head size']] },
};

function field(side, [key, label, kind, hint]) {
  const name = `${side}.${key}`, id = `${side}-${key}`;
  const input = el('input', { id, name, spellcheck: 'false', autocapitalize: 'off', title: kind ? null : hint });
  const box = el('div', { class: kind ? `field ${kind}` : 'field' }, el('label', { for: id }, label), input);
  if (kind && hint) {
    box.append(el('p', { class: 'hint', id: `${id}-hint` }, hint));
    input.setAttribute('aria-describedby', `${id}-hint`);
  }
  return box;
}

function buildForm() {
  for (const side of ['r', 't']) {
    const together = (entries) => el('div', { class: 'fields' }, ...entries.map((entry) => field(side, entry)));
    const more = el('details', {}, el('summary', {}, 'More'), together(FIELDS.more[side]));
    $(`${side}-fields`).append(together([...FIELDS.shape, ...FIELDS[side]]), more);
  }
}

const inputs = () => [...$('form').querySelectorAll('[name]')];

// A dense block has an expansion, experts have a width: the other field goes, and keeps what it held.
// A pasted config has the whole shape.
function showWhatApplies() {
  const pasted = $('t-config').value.trim() !== '';
  for (const side of ['r', 't']) {
    const dense = $(`${side}-feed_forward`).value.trim() === 'dense';
    const routed = /\de/.test($(`${side}-feed_forward`).value);
    const shown = { feed_forward: true, width: true, depth: true, expansion: dense, expert_width: !dense, dense_layers: routed, head_dim: true };
    for (const [key, applies] of Object.entries(shown)) {
      $(`${side}-${key}`).parentNode.hidden = !applies || (side === 't' && pasted);
    }
    if (side === 'r') $('r-route_scale').parentNode.hidden = !routed;
  }
  $('t-head_dim').closest('details').hidden = pasted;
  $('unpaste').hidden = !pasted;
  if (pasted) $('paste').open = true;
}

// What of a config can matter to a plan: numbers, yes and no, the family, and which layers route. The rest would make the address long.
function compactConfig(text) {
  try {
    const given = Object.entries(JSON.parse(text));
    const kept = given.filter(([key, value]) => ['number', 'boolean'].includes(typeof value) || key === 'model_type' || key.startsWith('mlp_'));
    return JSON.stringify(Object.fromEntries(kept));
  } catch {
    return text.slice(0, 500); // the server says what is wrong with it
  }
}

function parameters() {
  const found = new URLSearchParams();
  for (const input of inputs()) {
    const value = input.name === 't.config' ? compactConfig(input.value.trim()) : input.value.trim();
    if (!input.parentNode.hidden && value) found.set(input.name, value);
  }
  if (page.compare.size) found.set('compare', [...page.compare].join());
  return found;
}

// ---------------------------------------------------------------- numbers, as Python's %.6g writes them

function general(x, digits = 6) {
  if (x === 0) return '0';
  const [mantissa, exponent] = x.toExponential(digits - 1).split('e');
  const power = Number(exponent);
  if (power >= -4 && power < digits) return String(Number(x.toPrecision(digits)));
  const short = mantissa.includes('.') ? mantissa.replace(/\.?0+$/, '') : mantissa;
  return `${short}e${power < 0 ? '-' : '+'}${String(Math.abs(power)).padStart(2, '0')}`;
}

function count(n) {
  for (const [size, unit] of [[1e12, 'T'], [1e9, 'B'], [1e6, 'M'], [1e3, 'k']]) {
    if (n >= size) return `${Number((n / size).toPrecision(3))} ${unit}`;
  }
  return String(n);
}

const number = (x, digits) => (x === null ? '–' : el('data', { value: String(x) }, general(x, digits)));

// ---------------------------------------------------------------- what is shown

const page = {
  answer: null, view: 'plan', form: 'multiplier', row: '', what: 'python', sweep: '', compare: new Set(), by: 'lr', role: '', axis: 'width',
};
// What the address holds beside the form, where it is not as at the start.
const STATE = { form: 'multiplier', row: '', by: 'lr', role: '', axis: 'width', what: 'python' };

function address() {
  const url = new URLSearchParams(parameters());
  if (page.view !== 'plan') url.set('view', page.view);
  for (const [name, first] of Object.entries(STATE)) if (page[name] !== first) url.set(name, page[name]);
  if (page.view === 'runs' && page.sweep) url.set('sweep', page.sweep);
  return `${location.origin}${location.pathname}?${url}`;
}

const remember = () => history.replaceState(null, '', address());

function list(target, entries) {
  $(target).replaceChildren(
    ...entries.map(([term, value, note]) => {
      const shown = el('dd', {}, value);
      if (note) shown.append(el('small', {}, note));
      return el('div', {}, el('dt', {}, term), shown);
    }),
  );
}

function showAnswer() {
  const { plan, reference, layers, pictures, schedule } = page.answer;
  const block = plan.feed_forward, [from, to] = [plan.reference, plan.target];
  const title = `${reference.notation}, d ${from.shape.width}, L ${from.shape.depth} → ${block.notation}, d ${to.shape.width}, L ${to.shape.depth}`;
  $('headline').textContent = title;
  document.title = page.view === 'plan' ? `${block.notation} · Complete-muE planner` : 'Runs · Complete-muE planner';
  $('sde').textContent = `SDE ${plan.sde.verdict}`;
  $('sde').classList.toggle('exact', plan.sde.exact);
  const outside = plan.trust.outside.length ? ` Outside what was measured: ${plan.trust.outside.join(', ')}.` : '';
  const advice = plan.trust.advice && ` ${plan.trust.advice[0].toUpperCase()}${plan.trust.advice.slice(1)}.`;
  $('trust').textContent = `Trust: ${plan.trust.line}.${outside}${advice}`;
  const { active, total } = plan.parameters;
  list('tiles', [
    ['Global lr', number(plan.global.lr), `× ${general(plan.global.lr / from.hyper.lr, 4)} the reference’s`],
    ['Global weight decay', number(plan.global.weight_decay), 'roles have factors of their own'],
    ['Betas', plan.global.betas.map((beta) => general(beta)).join(', '), plan.betas === 'hold' ? 'held' : ''],
    ['Eps', number(plan.global.eps, 4)],
    ['Active parameters', el('data', { value: active }, count(active)), 'without embeddings'],
    ['Total parameters', el('data', { value: total }, count(total)), `reference: ${count(reference.parameters.total)}`],
    ['Active width H', number(block.active_width, 15), `${general(block.active_width / to.shape.width, 4)} d`],
    ['Route scale r', number(block.route_scale), `density a/N ${general(block.density, 4)}`],
  ]);
  const r = plan.ratios, s = plan.sde;
  list('ratios', [
    ['width ρ_d', number(r.width)], ['depth ρ_L', number(r.depth)], ['active width ρ_H', number(r.active_width)],
    ['batch ρ_B', number(r.batch)], ['tokens ρ_D', number(r.tokens)], ['schedule s', number(schedule)],
  ]);
  list('sde-ratios', [
    ['noise scale σ0', number(s.sigma0)], ['decay over rate λ/η', number(s.lambda)], ['horizon T·lr²', number(s.horizon)],
    ['σ0 of an expert', number(s.expert_sigma0)], ['batch of an expert', number(s.expert_batch)],
    ['tokens of an expert', number(s.expert_duration)],
  ]);
  $('reference-caption').textContent = `Reference: ${reference.notation}, active width ${reference.active_width}`;
  const mixed = layers.length > 1 ? `; ${layers.map((kind) => `${kind.layers} layers ${kind.notation}`).join(', ')}` : '';
  $('target-caption').textContent = `Target: ${block.notation}, active width ${block.active_width}${mixed}`;
  for (const side of ['reference', 'target']) {
    draw(`${side}-picture`, pictures[side]);
  }
  showConfig();
  showRows();
  showComparison();
  showPlot();
  showCode();
  $('jump').textContent = `lr ${general(plan.global.lr)} · the plan ↓`;
}

// The server draws from checked numbers; parsed as XML, nothing in it can run.
function draw(target, svg) {
  if (!svg) return $(target).replaceChildren();
  const drawn = new DOMParser().parseFromString(svg.replace('<svg ', '<svg xmlns="http://www.w3.org/2000/svg" '), 'image/svg+xml');
  $(target).replaceChildren(document.importNode(drawn.documentElement, true));
  for (const dot of $(target).querySelectorAll('.dot')) {
    dot.append(document.createElementNS('http://www.w3.org/2000/svg', 'title'));
    dot.lastChild.textContent = dot.getAttribute('aria-label');
  }
}

// A pasted config that the form can hold fills it, so that clearing the paste leaves a shape to edit.
function showConfig() {
  const { departs, fields, layers, plan } = page.answer;
  const pasted = $('t-config').value.trim() !== '', differ = pasted && !fields;
  if (pasted && fields) fill('t', fields);
  const shape = plan.target.shape, kinds = layers.map((kind) => `${kind.layers} × ${kind.notation}`).join(', ');
  $('config-note').textContent = pasted
    ? `Read: d ${shape.width}, ${kinds}. ${fields ? 'Clear the text to edit these as fields.' : ''}${departs ? ` Warning: ${departs}.` : ''}`
    : 'Batch and steps stay as you typed them.';
  const budget = plan.target.budget, name = differ ? 'config.json' : 'target.toml';
  document.querySelector('[name=what][value=target] + span').textContent = name;
  const chosen = ['rules', 'betas', 'duration'].map((name) => $(name)).filter((select) => select.selectedIndex > 0);
  const options = chosen.map((select) => ` --${select.name} ${select.value}`).join('');
  $('command').textContent = `mue plan reference.toml ${name}${differ ? ` --batch-tokens ${budget.batch_tokens} --steps ${budget.steps}` : ''}${options}`;
}

function madeOf(row) {
  const parts = [['A', row.output], ['r', row.route_scale], ['1/ρ_L', row.residual]].filter(([, value]) => value !== 1);
  return parts.map(([name, value]) => `${name} ${general(value, 4)}`).join(' × ');
}

function showRows() {
  const { plan, explain } = page.answer;
  const folded = page.form === 'folded';
  const rows = folded ? plan.folded : plan.rows;
  $('form-note').textContent = folded
    ? 'For a model without multipliers: the same run, by AdamW’s scale symmetry. Choose a row to see why.'
    : 'Multipliers go into the forward pass. Choose a row to see why.';
  const focused = document.activeElement?.dataset?.key;
  $('rows').replaceChildren(
    ...rows.flatMap((row, i) => {
      const several = rows.filter((other) => other.role === row.role).length > 1;
      const key = several ? `${row.role}:${row.block}` : row.role;
      const open = page.row === key;
      const button = el('button', { type: 'button', 'data-key': key, 'aria-expanded': open, 'aria-controls': open ? 'why' : null }, row.role);
      if (several) button.append(el('small', {}, row.block));
      const multiplier = el('td', {}, number(row.multiplier));
      if (madeOf(row).includes('×')) multiplier.append(el('small', {}, madeOf(row)));
      const line = el('tr', { class: open ? 'row open' : 'row', 'data-key': key },
        el('th', { scope: 'row' }, button), multiplier,
        ...[row.lr, row.init_std, row.weight_decay].map((value) => el('td', {}, number(value))), el('td', {}, number(row.eps, 4)));
      line.addEventListener('click', () => {
        page.row = open ? '' : key;
        showRows();
        remember();
        document.querySelector(`button[data-key="${CSS.escape(key)}"]`).focus({ preventScroll: true });
      });
      return open ? [line, explanation(explain[page.form][i])] : [line];
    }),
  );
  if (focused) document.querySelector(`button[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

function explanation(text) {
  const lines = text.split('\n').slice(1).map((line) =>
    el('div', { class: line.startsWith('      ') ? 'reason' : 'step' }, line.trim()));
  return el('tr', { class: 'why', id: 'why' }, el('td', { colspan: 6 }, el('div', { class: 'text', 'data-text': text }, ...lines)));
}

// ---------------------------------------------------------------- rule sets side by side

function buildOthers() {
  for (const { value } of $('rules').options) {
    const box = el('input', { type: 'checkbox', value });
    box.checked = page.compare.has(value);
    box.addEventListener('change', () => {
      page.compare[box.checked ? 'add' : 'delete'](value);
      compute();
    });
    $('others').append(el('label', { 'data-rules': value }, box, el('span', {}, value)));
  }
}

function showComparison() {
  const { compare, plan } = page.answer, rows = compare[page.form], several = compare.rules.length > 1;
  for (const chip of $('others').querySelectorAll('label')) chip.hidden = chip.dataset.rules === compare.rules[0];
  for (const input of $('bys').querySelectorAll('input')) {
    const n = rows.filter((row) => row.differs.includes(input.value)).length;
    input.nextSibling.textContent = input.value.replace('_', ' ') + (several ? ` · ${n}` : '');
  }
  const refused = Object.entries(compare.refused).map(([name, text]) => ` ${name}: ${text}`).join('.');
  $('compare-note').textContent = (several
    ? `${page.form === 'folded' ? 'Folded groups' : 'Multiplier form'}. Rows that differ are marked ≠; beside each column’s name, how many do.`
    : `Choose one rule set or more to see beside ${compare.rules[0]}.`) + refused;
  $('bys').hidden = $('compare-scroll').hidden = !several;
  if (!several) return $('compare-rows').replaceChildren();
  $('compare-head').replaceChildren(el('th', { scope: 'col', class: 'left' }, 'role'), ...compare.rules.map((name) => el('th', { scope: 'col' }, name)));
  const line = (name, block, differs, cells) => {
    const head = el('th', { scope: 'row' }, el('span', { class: 'mark', 'aria-hidden': 'true' }, differs ? '≠' : ''), name);
    if (block) head.append(el('small', {}, ` ${block}`));
    if (differs) head.append(el('span', { class: 'hidden' }, ' differs'));
    return el('tr', { class: differs ? 'differs' : null, 'data-role': name }, head, ...cells);
  };
  const betas = compare.betas.map((pair) => pair.map((beta) => general(beta)).join(', '));
  $('compare-rows').replaceChildren(
    ...rows.map((row) => {
      const values = row.values[page.by], twice = rows.filter((other) => other.role === row.role).length > 1;
      const cells = values.map((value) => el('td', { class: row.differs.includes(page.by) && value !== values[0] ? 'other' : null }, number(value, page.by === 'eps' ? 4 : 6)));
      return line(row.role, twice ? row.block : '', row.differs.includes(page.by), cells);
    }),
    line('betas', 'every role', betas.some((pair) => pair !== betas[0]), betas.map((pair) => el('td', { class: pair !== betas[0] ? 'other' : null }, pair))),
  );
}

// ---------------------------------------------------------------- along an axis

let plotted = 0;

async function showPlot() {
  const turn = ++plotted, asking = parameters();
  for (const name of ['form', 'role', 'axis']) asking.set(name, page[name]);
  try {
    const data = await (await fetch(`api/plot?${asking}`)).json();
    if (turn !== plotted) return;
    $('plot-role').replaceChildren(...(data.roles || []).map((role) => el('option', { value: role }, role.replace(':', ', '))));
    $('plot-role').value = data.role || '';
    $('plot-note').textContent = data.error || `${data.note}${data.lr ? ' The ring is your target.' : ''}`;
    $('plot-legend').replaceChildren(...(data.rules || []).map((names, i) => el('li', { class: `s${i && 1 + (i - 1) % 7}` }, names.join(' = '))));
    for (const column of ['lr', 'init_std']) draw(`plot-${column}`, data[column]);
  } catch {
    if (turn === plotted) $('plot-note').textContent = 'The server does not answer. Is `mue web` still running?';
  }
}

// ---------------------------------------------------------------- files

let reading = 0;

async function showCode() {
  const turn = ++reading, what = page.what, asking = parameters();
  if (page.form === 'folded') asking.set('form', page.form);
  const source = `api/text/${what}?${asking}`;
  let text = what === 'link' ? address() : page.answer.copy[what], refused = false;
  if (text === undefined) {
    try {
      const response = await fetch(source);
      refused = response.headers.get('content-type').startsWith('application/json');
      text = refused ? (await response.json()).error : await response.text();
    } catch {
      [text, refused] = ['The server does not answer. Is `mue web` still running?', true];
    }
  }
  if (turn !== reading) return;
  $('code').textContent = text;
  $('code').dataset.what = what;
  $('code').classList.toggle('error', refused);
  $('copy').hidden = refused;
  $('download').hidden = refused || what === 'link';
  $('download').href = source;
}

function showError(text, name) {
  $('error').hidden = !text;
  if ($('error').textContent !== text) $('error').textContent = text;
  $('answer').classList.toggle('stale', Boolean(text));
  if (text) $('jump').textContent = 'An error ↓';
  for (const input of inputs()) {
    if (text && input.name === name) {
      input.setAttribute('aria-invalid', 'true');
      input.closest('details')?.setAttribute('open', '');
    } else input.removeAttribute('aria-invalid');
  }
}

// ---------------------------------------------------------------- asking the server

let asked = 0, waiting = null;

async function compute() {
  const turn = ++asked;
  clearTimeout(waiting);
  waiting = null;
  $('results').ariaBusy = 'true';
  showWhatApplies();
  remember();
  try {
    const response = await fetch(`api/plan?${parameters()}`);
    const data = await response.json();
    if (turn !== asked) return;
    if (data.error) return showError(`mue: error: ${data.error}`, data.field);
    page.answer = data;
    $('answer').hidden = false;
    showError('');
    showAnswer();
  } catch {
    if (turn === asked) showError('The server does not answer. Is `mue web` still running?');
  } finally {
    if (turn === asked && !waiting) $('results').ariaBusy = 'false';
  }
}

function soon() {
  clearTimeout(waiting);
  $('results').ariaBusy = 'true';
  waiting = setTimeout(compute, 120);
}

async function copy() {
  const text = $('code').textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch { // no clipboard outside a secure context, such as an address of the local network
    const range = document.createRange();
    range.selectNodeContents($('code'));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    document.execCommand('copy');
  }
  $('copied').textContent = 'Copied.';
  setTimeout(() => { $('copied').textContent = ''; }, 2500);
}

// ---------------------------------------------------------------- presets

async function buildPresets() {
  const data = await (await fetch('api/presets')).json();
  for (const [side, kind] of [['r', 'reference'], ['t', 'target']]) {
    const select = $(`${side}-preset`), groups = new Map();
    data[kind].forEach((preset, i) => {
      if (!groups.has(preset.source)) groups.set(preset.source, el('optgroup', { label: preset.source }));
      groups.get(preset.source).append(el('option', { value: i }, preset.name));
    });
    select.append(...groups.values());
    select.addEventListener('change', () => {
      if (select.value !== '') fill(side, { ...data[kind][Number(select.value)].fields, config: '' });
      compute();
    });
  }
  return data;
}

function fill(side, values) {
  for (const [key, value] of Object.entries(values)) {
    const input = $(`${side}-${key}`);
    if (input) input.value = value;
  }
}

// ---------------------------------------------------------------- runs

const POLL = 2000;
const shown = new Map(); // sweep -> its list entry
let polling = null, loaded = '';

function ago(seconds) {
  if (seconds < 60) return `${Math.max(0, Math.round(seconds))} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  return seconds < 129600 ? `${Math.round(seconds / 3600)} h ago` : `${Math.round(seconds / 86400)} days ago`;
}

function sweepEntry(name) {
  const title = el('b'), bar = el('progress', { 'aria-label': `Progress of ${name}` }), state = el('span', { class: 'soft' });
  const problem = el('span', { class: 'problem' });
  const button = el('button', { type: 'button', 'data-sweep': name }, title, bar, state, problem);
  button.addEventListener('click', () => choose(name));
  return { item: el('li', {}, button), button, title, bar, state, problem };
}

function showSweep(sweep) {
  if (!shown.has(sweep.name)) shown.set(sweep.name, sweepEntry(sweep.name));
  const entry = shown.get(sweep.name), p = sweep.progress;
  entry.title.textContent = sweep.title || sweep.name;
  entry.problem.textContent = sweep.error || '';
  entry.bar.hidden = entry.state.hidden = !p;
  if (p) {
    entry.bar.max = p.runs;
    entry.bar.value = p.runs - p.missing;
    const bad = [[p.diverged, 'diverged'], [p.failed, 'failed']].filter(([n]) => n).map(([n, word]) => `, ${n} ${word}`).join('');
    const last = p.missing ? `; last record ${ago(Date.now() / 1000 - sweep.updated)}` : '';
    entry.state.textContent = `${p.finished} of ${p.runs} finished${bad}${last}`;
  }
  if (page.sweep === sweep.name) entry.button.setAttribute('aria-current', 'true');
  else entry.button.removeAttribute('aria-current');
  return entry.item;
}

async function poll() {
  clearTimeout(polling);
  if (page.view !== 'runs') return;
  try {
    const data = await (await fetch('api/runs')).json();
    if (data.error) throw new Error(data.error);
    const names = data.sweeps.map((sweep) => sweep.name);
    if (!names.includes(page.sweep)) { // the one that changed last
      const readable = data.sweeps.filter((sweep) => !sweep.error).sort((a, b) => b.updated - a.updated);
      page.sweep = (readable[0] || data.sweeps[0])?.name || '';
    }
    const items = data.sweeps.map(showSweep);
    const stands = [...$('sweeps').children];
    if (items.length !== stands.length || items.some((item, i) => item !== stands[i])) $('sweeps').replaceChildren(...items);
    const live = names.length
      ? `In ${data.folder}; looks for new records every ${POLL / 1000} s.`
      : `No sweep in ${data.folder} yet. Start one with: mue sweep activated`;
    if ($('live').textContent !== live) $('live').textContent = live;
    showReport(data.sweeps.find((sweep) => sweep.name === page.sweep));
  } catch {
    $('live').textContent = 'The server does not answer. Is `mue web` still running?';
  }
  polling = setTimeout(poll, document.hidden ? 10 * POLL : POLL);
}

function choose(name) {
  page.sweep = name;
  remember();
  poll();
}

function fit(frame) {
  const root = frame.contentDocument?.documentElement;
  if (root) frame.style.height = `${root.querySelector('body').scrollHeight}px`;
}

// A new report loads out of sight and takes the old one's place when it is there: nothing jumps.
function showReport(sweep) {
  const readable = sweep && !sweep.error;
  $('no-report').hidden = Boolean(readable);
  $('no-report').textContent = sweep ? 'This sweep cannot be read; the list says why.' : 'No sweep to show.';
  $('alone').hidden = !readable;
  $('report-title').textContent = readable ? sweep.title : 'Report';
  if (!readable) {
    loaded = '';
    return $('report').replaceChildren();
  }
  const source = `runs/${encodeURIComponent(sweep.name)}`;
  $('alone').href = source;
  if (loaded === `${source}?${sweep.version}`) return;
  loaded = `${source}?${sweep.version}`;
  const frame = el('iframe', { class: 'loading', title: `Report of ${sweep.name}`, src: loaded, 'data-version': sweep.version });
  frame.addEventListener('load', () => {
    if (loaded !== `${source}?${sweep.version}`) return frame.remove();
    const before = $('report').querySelector('iframe:not(.loading)');
    if (before) frame.style.height = before.style.height;
    before?.remove();
    frame.classList.remove('loading');
    fit(frame);
  });
  $('report').append(frame);
}

// ---------------------------------------------------------------- start

function show(view) {
  page.view = view === 'runs' ? 'runs' : 'plan';
  $('plan-view').hidden = page.view !== 'plan';
  $('runs-view').hidden = page.view !== 'runs';
  for (const link of document.querySelectorAll('[data-view]')) {
    if (link.dataset.view === page.view) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  remember();
  if (page.answer) showAnswer();
  poll();
}

const SHOWS = { form: () => { showRows(); showComparison(); showPlot(); showCode(); }, what: showCode, by: showComparison, axis: showPlot };

function radios(fieldset, name) {
  const chosen = $(fieldset).querySelector(`[value="${CSS.escape(page[name])}"]`);
  if (chosen) chosen.checked = true;
  else page[name] = STATE[name];
  $(fieldset).addEventListener('change', (event) => {
    page[name] = event.target.value;
    if (!page.answer) return;
    remember();
    SHOWS[name]();
  });
}

async function start() {
  buildForm();
  const given = new URLSearchParams(location.search);
  const data = await buildPresets();
  if (![...given.keys()].some((name) => /^[rt]\./.test(name))) {
    fill('r', data.reference[0].fields);
    fill('t', data.target[0].fields);
  }
  for (const input of inputs()) {
    const value = given.get(input.name);
    if (value === null) continue;
    if (input.tagName === 'SELECT' && ![...input.options].some((option) => option.value === value)) {
      input.append(el('option', {}, value)); // the server says what is wrong with it
    }
    input.value = value;
  }
  for (const [name, first] of Object.entries(STATE)) page[name] = given.get(name) || first;
  page.sweep = given.get('sweep') || '';
  page.compare = new Set((given.get('compare') || '').split(',').filter(Boolean));
  buildOthers();
  $('form').addEventListener('input', (event) => {
    if (!event.target.name) return;
    if (/^[rt]\./.test(event.target.name)) $(`${event.target.name[0]}-preset`).value = '';
    soon();
  });
  $('form').addEventListener('submit', (event) => { event.preventDefault(); compute(); });
  radios('forms', 'form');
  radios('copies', 'what');
  radios('bys', 'by');
  radios('axes', 'axis');
  $('plot-role').addEventListener('change', () => { page.role = $('plot-role').value; remember(); showPlot(); });
  $('unpaste').addEventListener('click', () => { $('t-config').value = ''; $('t-config').focus(); compute(); });
  $('copy').addEventListener('click', copy);
  for (const link of document.querySelectorAll('[data-view]')) {
    link.addEventListener('click', (event) => { event.preventDefault(); show(link.dataset.view); });
  }
  addEventListener('resize', () => { const frame = $('report').querySelector('iframe:not(.loading)'); if (frame) fit(frame); });
  document.addEventListener('visibilitychange', () => { if (!document.hidden) poll(); });
  // On a phone the plan is below the form: a button leads there, and goes when it has.
  new IntersectionObserver(([entry]) => $('jump').classList.toggle('there', entry.isIntersecting || entry.boundingClientRect.top < 0)).observe($('results'));
  await compute();
  show(given.get('view'));
}

start();
