"""The page's style sheet and script: no fonts, no files, no network."""

from __future__ import annotations

# Colours: Okabe and Ito's set, which people with any colour vision tell apart; its yellow, too faint on white, is wine.
STYLE = """
:root{color-scheme:light dark;--bg:#fbfbfa;--card:#fff;--ink:#1c2024;--soft:#5d666f;--rule:#e3e6e8;--grid:#eceef0;
--good:#117a4b;--bad:#b3261e;--open:#8a5a00;--good-bg:#e7f5ee;--bad-bg:#fcebea;--open-bg:#fdf3e0;--link:#0b62a8;
--c0:#1c2024;--c1:#0072b2;--c2:#d55e00;--c3:#009e73;--c4:#b3589a;--c5:#c98200;--c6:#3a9fd6;--c7:#882255}
@media (prefers-color-scheme:dark){:root{--bg:#14171a;--card:#1c2024;--ink:#e8eaec;--soft:#a0a9b2;--rule:#333a41;
--grid:#2a3036;--good:#5fd39b;--bad:#ff8a80;--open:#f2bd5c;--good-bg:#173226;--bad-bg:#3a1f1e;--open-bg:#362a14;
--link:#7cc0f5;--c0:#e8eaec;--c1:#4aa8e0;--c2:#ff8b3d;--c3:#2fcf9f;--c4:#e493c6;--c5:#f0b429;--c6:#8fd3f7;--c7:#d9688f}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main,header,footer{max-width:1180px;margin:0 auto;padding:0 20px}
header{padding-top:32px}
h1,h2,h3,h4,a,p,th,dd,button{overflow-wrap:anywhere}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 4px;letter-spacing:-.01em}
h2{font-size:1.35rem;margin:44px 0 2px}
h3{font-size:1.05rem;margin:30px 0 2px}
p{margin:4px 0}
.soft,figcaption,footer{color:var(--soft);font-size:.9rem}
nav{display:flex;flex-wrap:wrap;gap:6px 16px;margin-top:10px}
a{color:var(--link)}
ul.verdict{list-style:none;margin:14px 0;padding:0;display:grid;gap:8px}
ul.verdict>li{background:var(--card);border:1px solid var(--rule);border-left:4px solid var(--soft);border-radius:8px;
padding:9px 14px 9px 36px;text-indent:-22px;overflow-wrap:anywhere}
ul.verdict>.good{border-left-color:var(--good);background:var(--good-bg)}
ul.verdict>.bad{border-left-color:var(--bad);background:var(--bad-bg)}
ul.verdict>.open{border-left-color:var(--open);background:var(--open-bg)}
ul.verdict ul{list-style:none;margin:4px 0 0;padding:0 0 0 22px;font-size:.92rem}
ul.verdict ul li{margin-top:3px}
.sign{display:inline-block;width:22px;text-indent:0}
.good-sign{color:var(--good)}.bad-sign{color:var(--bad)}.open-sign{color:var(--open)}.note-sign{color:var(--soft)}
figure{margin:10px 0 0;background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:14px 14px 10px}
.panels{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,300px),1fr));gap:10px 18px}
.panels>div{min-width:0;max-width:620px}
.pictures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:0 20px}
.pictures>div{min-width:0}.pictures>.wide{grid-column:1/-1}
.panels h4{margin:0 0 2px;font-size:.95rem;font-weight:600;text-align:center}
.legend{display:flex;flex-wrap:wrap;gap:4px 6px;margin:2px 0 8px}
.legend button{display:inline-flex;align-items:center;gap:5px;font:inherit;font-size:.88rem;color:var(--ink);
background:none;border:1px solid transparent;border-radius:99px;padding:2px 9px;cursor:pointer}
.legend button:hover{border-color:var(--rule)}
.legend button[aria-pressed=false]{opacity:.4;text-decoration:line-through}
.key{width:13px;height:13px}
.chart{display:block;width:100%;height:auto;font-size:12.5px;overflow:visible}
.chart text{fill:var(--soft)}.chart .name{fill:var(--ink)}.chart .guide-label{fill:var(--ink);font-size:11.5px}
.grid{stroke:var(--grid)}.axis,.tick{stroke:var(--soft)}
.guide{stroke:var(--ink);stroke-dasharray:5 4;opacity:.65}
.s0{--c:var(--c0)}.s1{--c:var(--c1)}.s2{--c:var(--c2)}.s3{--c:var(--c3)}.s4{--c:var(--c4)}.s5{--c:var(--c5)}
.s6{--c:var(--c6)}.s7{--c:var(--c7)}
.line polyline{fill:none;stroke:var(--c);stroke-width:1.8;stroke-linejoin:round}
.line.s0 polyline{stroke-width:2.4}
.mark{fill:var(--c)}.bar{stroke:var(--c);stroke-width:1.4;opacity:.75}
.cross{stroke:var(--c);stroke-width:2;fill:none}
.ring{fill:none;stroke:var(--c);stroke-width:1.8}
.hit{fill:transparent}.dot{outline:none;cursor:pointer}
.dot:focus .hit,.dot:hover .hit{fill:var(--c);opacity:.22}
.dot:focus-visible .hit{stroke:var(--ink);stroke-width:1.5;opacity:.5}
.faint .mark{opacity:0}.faint:focus .mark,.faint:hover .mark{opacity:1}
.off{display:none}
#tip{position:fixed;z-index:9;pointer-events:none;max-width:min(280px,90vw);background:var(--ink);color:var(--bg);
font-size:.85rem;line-height:1.35;padding:6px 9px;border-radius:6px;opacity:0;transition:opacity .1s}
#tip.on{opacity:1}
.scroll{overflow-x:auto;margin:8px 0 0;border:1px solid var(--rule);border-radius:10px;background:var(--card)}
table{border-collapse:collapse;width:100%;font-size:.9rem;font-variant-numeric:tabular-nums}
caption{text-align:left;padding:10px 12px 4px;font-weight:600}
th,td{padding:5px 12px;text-align:right;white-space:nowrap;border-top:1px solid var(--rule)}
th[scope=row]{position:sticky;left:0;background:var(--card)}
.group{padding-top:12px;color:var(--soft);font-weight:500}.group span{position:sticky;left:12px}
thead th{border-top:0;color:var(--soft);font-weight:500}
th.l,td.l{text-align:left}td.w{white-space:normal;min-width:13em}td.w b{font-weight:600}
.held,.flat{color:var(--good)}.missed{color:var(--bad)}.open-s,.unclear,.unfinished{color:var(--open)}
pre{overflow-x:auto;background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:9px 12px;margin:8px 0;
font-size:.85rem}
details{margin:10px 0}summary{cursor:pointer}
dl{margin:6px 0;display:grid;grid-template-columns:minmax(6em,auto) 1fr;gap:4px 14px}dt{font-weight:600}dd{margin:0}
footer{padding-top:28px;padding-bottom:48px}
@media (max-width:560px){main,header,footer{padding-left:14px;padding-right:14px}.chart{font-size:14px}
.chart .guide-label{font-size:13px}figure{padding:10px 6px 8px}figcaption,.legend{padding:0 6px}dl{display:block}
th,td{padding:5px 9px}}
@media (prefers-reduced-motion:reduce){#tip{transition:none}}
@media print{figure,tr{break-inside:avoid}}
"""

# Tooltips on hover, touch and keyboard focus; arrow keys walk along a line; the legend hides and shows lines.
SCRIPT = """
(function () {
  'use strict';
  var tip = document.getElementById('tip'), shown = null;
  function show(dot) {
    shown = dot;
    tip.textContent = dot.getAttribute('aria-label');
    tip.classList.add('on');
    var at = dot.getBoundingClientRect(), box = tip.getBoundingClientRect();
    var room = document.documentElement.clientWidth;
    var left = Math.min(Math.max(6, at.left + at.width / 2 - box.width / 2), room - box.width - 6);
    var top = at.top - box.height - 6;
    tip.style.left = left + 'px';
    tip.style.top = (top < 6 ? at.bottom + 6 : top) + 'px';
  }
  function hide() { shown = null; tip.classList.remove('on'); }
  function dotOf(event) { return event.target.closest ? event.target.closest('.dot') : null; }
  ['pointerover', 'focusin', 'click'].forEach(function (name) {
    document.addEventListener(name, function (event) { var dot = dotOf(event); if (dot) show(dot); });
  });
  document.addEventListener('pointerout', function (event) { if (dotOf(event)) hide(); });
  document.addEventListener('focusout', hide);
  window.addEventListener('scroll', function () {
    if (shown) show(shown);
  }, { passive: true });
  document.addEventListener('keydown', function (event) {
    if (event.key === 'Escape') return hide();
    var dot = dotOf(event), step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!dot || !step) return;
    var dots = Array.prototype.slice.call(dot.parentNode.querySelectorAll('.dot'));
    var next = dots[dots.indexOf(dot) + step];
    if (next) { dot.setAttribute('tabindex', '-1'); next.setAttribute('tabindex', '0'); next.focus(); }
    event.preventDefault();
  });
  document.querySelectorAll('.legend button').forEach(function (button) {
    button.addEventListener('click', function () {
      var on = button.getAttribute('aria-pressed') !== 'true';
      button.setAttribute('aria-pressed', String(on));
      button.closest('figure').querySelectorAll('.line').forEach(function (line) {
        if (line.dataset.name === button.dataset.name) line.classList.toggle('off', !on);
      });
    });
  });
})();
"""
