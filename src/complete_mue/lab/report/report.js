// Tooltips on hover, touch and keyboard focus; arrow keys walk along a line; the legend hides and shows lines.
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
