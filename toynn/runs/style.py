"""The style sheet of report.html: system fonts, colours for light and dark, and for paper."""

STYLE = """
:root { color-scheme: light dark; --back: #fbfbfa; --card: #ffffff; --text: #1d2129;
  --soft: #5c6470;
  --rule: #dfe2e6; --c0: #1f5fd0; --c1: #c2570c; --c2: #16803c; --c3: #7c3aed; --bad: #b3261e;
  --good: #16703a; --bar: #c9daf8; }
@media (prefers-color-scheme: dark) { :root { --back: #14171c; --card: #1c2027; --text: #e6e8eb;
  --soft: #a2abb8; --rule: #343a44; --c0: #7aa7ff; --c1: #ffab5e; --c2: #6fd08c; --c3: #c4a3ff;
  --bad: #ff8a80; --good: #7bd88f; --bar: #2c4470; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 76rem; background: var(--back);
  color: var(--text); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.55rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2rem 0 .6rem; border-bottom: 1px solid var(--rule); }
h3 { font-size: 1rem; margin: 1.2rem 0 .4rem; }
p { margin: .3rem 0; }
.soft, figcaption { color: var(--soft); }
.state { font-weight: 600; } .good { color: var(--good); } .bad { color: var(--bad); }
.tiles { display: flex; flex-wrap: wrap; gap: .6rem; margin: 1rem 0 0; padding: 0; }
.tile { background: var(--card); border: 1px solid var(--rule); border-radius: 8px;
  padding: .5rem .9rem; min-width: 8.5rem; }
.tile b { display: block; font-size: 1.25rem; font-weight: 600;
  font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: .85rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(27rem, 100%), 1fr));
  gap: .8rem; }
figure { margin: 0; background: var(--card); border: 1px solid var(--rule); border-radius: 8px;
  padding: .6rem .8rem; }
figcaption { font-weight: 600; }
.scale summary { font-size: .8rem; text-align: right; }
.scale[open] + .linear { display: none; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--soft); font: 12px system-ui, sans-serif; }
.end { text-anchor: end; } .middle { text-anchor: middle; }
.grid { stroke: var(--rule); stroke-width: 1; }
.level { stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 2 4; }
.curve { fill: none; stroke-width: 2; stroke-linejoin: round; }
.curve.c0 { stroke: var(--c0); } .curve.c1 { stroke: var(--c1); }
.curve.c2 { stroke: var(--c2); } .curve.c3 { stroke: var(--c3); }
.dot.c0 { fill: var(--c0); } .dot.c1 { fill: var(--c1); }
.dot.c2 { fill: var(--c2); } .dot.c3 { fill: var(--c3); }
.wide { overflow-x: auto; }
.cards { columns: 3 21rem; column-gap: 2rem; }
.card h3 { break-after: avoid; } .card td:first-child { white-space: nowrap; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th { color: var(--soft); font-weight: 600; }
th, td { padding: .15rem .9rem .15rem 0; border-bottom: 1px solid var(--rule);
  vertical-align: top; }
.word { text-align: left; overflow-wrap: anywhere; } .figure { text-align: right;
  white-space: nowrap; }
.bar { display: block; height: .8rem; margin-top: .3rem; background: var(--bar);
  border-radius: 3px; min-width: 1px; }
.room { width: 14rem; }
pre { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; margin: .3rem 0;
  padding: .5rem .8rem; white-space: pre-wrap; overflow-wrap: anywhere;
  font: 13px/1.45 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
code { font: 13px ui-monospace, "SF Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.pictures { display: flex; flex-wrap: wrap; gap: .7rem; }
.pictures div { width: 6.5rem; font-size: .8rem; overflow-wrap: anywhere; }
.pictures img { width: 6.5rem; height: 6.5rem; image-rendering: pixelated;
  border: 1px solid var(--rule); border-radius: 4px; display: block; }
.matrix td, .matrix th { padding: .2rem .5rem; text-align: center; border: 1px solid var(--rule); }
.matrix th { max-width: 8rem; overflow-wrap: anywhere; }
details summary { cursor: pointer; color: var(--soft); }
@media print { body { max-width: none; } figure, pre, .tile { break-inside: avoid; } }
"""
