"""The one style sheet: scoped under ``.nbi``, coloured by the front end's own variables.

JupyterLab, VS Code and Colab each publish their colours as CSS variables; a plain page falls back
on the reader's light or dark preference. Ink and paper always come from the same place, so that
text never stands on a background it was not meant for.
"""

from __future__ import annotations

import functools

from nbinspect.render.palette import HUES, css_class

HATCH = "repeating-linear-gradient(135deg,rgba(255,255,255,.6) 0 2px,transparent 2px 6px)"

_VARIABLES = """
.nbi{
--nbi-ink-0:#1f2328;--nbi-paper-0:#ffffff;--nbi-accent-0:#0072b2;--nbi-alert-0:#c62828;
--nbi-ink:var(--jp-ui-font-color1,var(--vscode-editor-foreground,var(--colab-primary-text-color,var(--nbi-ink-0))));
--nbi-paper:var(--jp-layout-color0,var(--vscode-editor-background,var(--colab-primary-surface-color,var(--nbi-paper-0))));
--nbi-accent:var(--jp-brand-color1,var(--vscode-textLink-foreground,var(--nbi-accent-0)));
--nbi-alert:var(--jp-error-color1,var(--vscode-errorForeground,var(--nbi-alert-0)));
--nbi-font:var(--jp-ui-font-family,var(--vscode-font-family,system-ui,-apple-system,"Segoe UI",Roboto,sans-serif));
--nbi-mono:var(--jp-code-font-family,var(--vscode-editor-font-family,ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace));
--nbi-muted:color-mix(in srgb,var(--nbi-ink) 68%,var(--nbi-paper));
--nbi-line:color-mix(in srgb,var(--nbi-ink) 16%,var(--nbi-paper));
--nbi-tint:color-mix(in srgb,var(--nbi-ink) 7%,var(--nbi-paper));
}
@media (prefers-color-scheme:dark){
.nbi{--nbi-ink-0:#e6e6e6;--nbi-paper-0:#1b1b1b;--nbi-accent-0:#56b4e9;--nbi-alert-0:#ef9a9a}
}
"""

# The class is repeated to outweigh the front ends' own rules for tables, lists and code.
_RULES = """
.nbi.nbi{color:var(--nbi-ink);background:var(--nbi-paper);font:13px/1.45 var(--nbi-font);font-variant-numeric:tabular-nums;max-width:900px;padding:6px 8px;overflow-wrap:anywhere;text-align:left;container-type:inline-size}
.nbi.nbi *{box-sizing:border-box}
.nbi.nbi p,.nbi.nbi table,.nbi.nbi details{margin:0;padding:0;border:0}
.nbi.nbi .nbi-block{margin:0 0 14px}
.nbi.nbi .nbi-block:last-child{margin-bottom:0}
.nbi.nbi strong{font-weight:600;color:inherit}
.nbi.nbi .nbi-headline{font-size:16px;line-height:1.4;font-weight:600}
.nbi.nbi .nbi-note,.nbi.nbi .nbi-quiet{font-size:12px;color:var(--nbi-muted)}
.nbi.nbi .nbi-note.nbi-block{margin-bottom:6px}
.nbi.nbi .nbi-action{border-left:3px solid var(--nbi-alert);padding-left:10px;font-weight:600}
.nbi.nbi.nbi code{font:inherit;font-family:var(--nbi-mono);font-size:.93em;font-weight:inherit;color:inherit;background:none;padding:0;border:0;white-space:normal;unicode-bidi:isolate}
.nbi.nbi .nbi-n{white-space:nowrap}
.nbi.nbi .nbi-miss{font-style:italic;vertical-align:top;color:var(--nbi-muted)}
.nbi.nbi .nbi-none{color:var(--nbi-muted)}
.nbi.nbi .nbi-advice{border-left:3px solid var(--nbi-accent);padding-left:10px}
.nbi.nbi .nbi-advice+.nbi-advice{margin-top:-4px}
.nbi.nbi .nbi-back{font-weight:600;white-space:nowrap;margin-left:4px}
.nbi.nbi.nbi .nbi-mend{display:block;width:fit-content;max-width:100%;margin-top:4px;padding:3px 8px;font-size:12px;background:var(--nbi-tint);border-radius:3px;white-space:pre-wrap;user-select:all}
.nbi.nbi .nbi-head{display:flex;flex-wrap:wrap;gap:0 8px;align-items:baseline;margin-bottom:4px}
.nbi.nbi .nbi-title{font-weight:600;font-size:13px;text-align:left;unicode-bidi:isolate}
.nbi.nbi .nbi-track{display:flex;gap:1px;height:18px;background:var(--nbi-tint);border-radius:3px;overflow:hidden}
.nbi.nbi .nbi-seg{flex:0 1 auto;min-width:2px;box-shadow:inset 0 0 0 1px rgba(0,0,0,.18)}
.nbi.nbi .nbi-legend{display:flex;flex-wrap:wrap;gap:2px 18px;margin-top:6px;font-size:12px}
.nbi.nbi .nbi-legend>span{display:inline-flex;align-items:baseline;gap:6px}
.nbi.nbi .nbi-legend>.nbi-sep,.nbi.nbi .nbi-scale>.nbi-sep{display:none}
.nbi.nbi .nbi-legend .nbi-n{font-weight:600}
.nbi.nbi .nbi-sw{flex:none;display:inline-block;width:10px;height:10px;border-radius:2px;box-shadow:inset 0 0 0 1px color-mix(in srgb,var(--nbi-ink) 28%,transparent)}
.nbi.nbi .nbi-legend .nbi-sw{transform:translateY(1px)}
.nbi.nbi .nbi-table{border-collapse:collapse;width:auto;min-width:min(100%,520px);max-width:100%;font-size:12px;table-layout:auto;display:table}
.nbi.nbi .nbi-table caption{caption-side:top;padding:0 0 4px;color:var(--nbi-ink);font-style:normal}
.nbi.nbi .nbi-table tr{background:none;border:0}
.nbi.nbi .nbi-table tbody tr:hover{background:var(--nbi-tint)}
.nbi.nbi .nbi-table th,.nbi.nbi .nbi-table td{padding:3px 14px 3px 0;text-align:left;vertical-align:baseline;border:0;border-bottom:1px solid var(--nbi-line);background:none;max-width:none;white-space:normal;line-height:1.4}
.nbi.nbi .nbi-table th:last-child,.nbi.nbi .nbi-table td:last-child{padding-right:4px}
.nbi.nbi .nbi-table th{font-weight:400;color:var(--nbi-muted);white-space:nowrap;vertical-align:bottom}
.nbi.nbi .nbi-table .nbi-num{text-align:right;white-space:nowrap}
.nbi.nbi .nbi-table .nbi-short{white-space:nowrap;width:1px}
.nbi.nbi .nbi-table .nbi-num .nbi-miss{display:inline-block;min-width:120px;white-space:normal}
.nbi.nbi .nbi-table .nbi-num,.nbi.nbi .nbi-table .nbi-kind{width:1px}
.nbi.nbi .nbi-table .nbi-num .nbi-n{display:inline-block;min-width:60px}
.nbi.nbi .nbi-table td{overflow-wrap:break-word}
.nbi.nbi .nbi-table td code{overflow-wrap:anywhere}
.nbi.nbi .nbi-table td.nbi-kind{white-space:nowrap;padding-left:16px}
.nbi.nbi .nbi-table .nbi-kind .nbi-sw{margin:0 6px 0 -16px}
.nbi.nbi .nbi-table .nbi-more td{color:var(--nbi-muted);border-bottom:0}
.nbi.nbi .nbi-share{display:inline-block;width:44px;height:7px;margin-right:8px;background:var(--nbi-tint);border-radius:2px;overflow:hidden}
.nbi.nbi .nbi-share span{display:block;height:100%;background:var(--nbi-muted);opacity:.75}
.nbi.nbi details{border-top:1px solid var(--nbi-line);padding-top:6px}
.nbi.nbi summary{cursor:pointer;color:var(--nbi-muted);display:list-item}
.nbi.nbi summary:hover{color:var(--nbi-ink)}
.nbi.nbi details.nbi-block{margin-bottom:6px}
.nbi.nbi details[open]>summary{margin-bottom:8px}
.nbi.nbi .nbi-plot{position:relative;height:150px;margin:6px 18px 22px 72px;border-bottom:1px solid var(--nbi-muted)}
.nbi.nbi .nbi-plot svg{position:absolute;inset:0;width:100%;height:100%;overflow:visible}
.nbi.nbi .nbi-area{fill:var(--nbi-accent);opacity:.18}
.nbi.nbi .nbi-curve{fill:none;stroke:var(--nbi-accent);stroke-width:1.5px;vector-effect:non-scaling-stroke}
.nbi.nbi .nbi-y{position:absolute;left:0;right:0;border-top:1px solid var(--nbi-line)}
.nbi.nbi .nbi-y::before{content:attr(data-t);position:absolute;right:100%;top:-8px;width:64px;margin-right:8px;text-align:right;font-size:11px;line-height:16px;white-space:nowrap;color:var(--nbi-muted)}
.nbi.nbi .nbi-x{position:absolute;top:100%}
.nbi.nbi .nbi-x::before{content:attr(data-t);position:absolute;top:5px;transform:translateX(-50%);font-size:11px;line-height:16px;white-space:nowrap;color:var(--nbi-muted)}
.nbi.nbi .nbi-base{position:absolute;left:0;right:0;border-top:1px dashed var(--nbi-muted)}
.nbi.nbi .nbi-dot{position:absolute;width:16px;height:16px;margin:-8px 0 0 -8px;border-radius:8px;background:var(--nbi-ink);color:var(--nbi-paper);font-size:11px;line-height:16px;text-align:center;font-weight:600}
.nbi.nbi .nbi-dot::before{content:attr(data-t)}
.nbi.nbi .nbi-legend .nbi-dot{position:static;margin:0;flex:none}
.nbi.nbi .nbi-hist{height:110px;margin-right:8px}
.nbi.nbi .nbi-col{fill:var(--nbi-accent);stroke:var(--nbi-paper);stroke-width:1px;vector-effect:non-scaling-stroke}
.nbi.nbi .nbi-col.nbi-faint{fill:color-mix(in srgb,var(--nbi-accent) 45%,var(--nbi-paper))}
.nbi.nbi .nbi-col.nbi-alerts{fill:var(--nbi-alert)}
.nbi.nbi .nbi-band{position:relative;height:9px;margin:0 8px 7px 72px;background:var(--nbi-tint)}
.nbi.nbi .nbi-band::before{content:attr(data-t);position:absolute;right:100%;top:-4px;width:64px;margin-right:8px;text-align:right;font-size:11px;line-height:16px;white-space:nowrap;color:var(--nbi-muted)}
.nbi.nbi .nbi-band span{position:absolute;top:0;bottom:0;background:var(--nbi-muted)}
.nbi.nbi .nbi-band .nbi-faint{opacity:.4}
.nbi.nbi .nbi-shades{border-collapse:collapse;border:0;margin:2px 0;width:100%;max-width:860px;background:none;table-layout:auto}
.nbi.nbi .nbi-shades tr,.nbi.nbi .nbi-shades th,.nbi.nbi .nbi-shades td{background:none;border:0;padding:0;font-weight:400;text-align:left;vertical-align:middle;line-height:18px;height:18px;color:inherit}
.nbi.nbi .nbi-shades th{padding-right:12px;width:1%}
.nbi.nbi .nbi-shades th,.nbi.nbi .nbi-shades th *{white-space:nowrap;overflow-wrap:normal;word-break:normal}
.nbi.nbi .nbi-shades td[rowspan]{position:relative}
.nbi.nbi .nbi-shades-map{position:absolute;inset:0;width:100%;height:100%;max-width:none;image-rendering:pixelated;background:var(--nbi-tint)}
.nbi.nbi .nbi-shades-ends{display:flex;justify-content:space-between;font-size:11px;color:var(--nbi-muted)}
.nbi.nbi .nbi-shades-scale{display:inline-block;width:120px;height:10px;margin:0 8px;background:linear-gradient(90deg,rgba(0,114,178,.06),rgb(0,114,178))}
.nbi.nbi .nbi-shades-bad{background:#c62828}
.nbi.nbi .nbi-picture{overflow-x:auto;text-align:center;margin:4px 0}
.nbi.nbi [class*=nbi-below-]{display:none}
.nbi.nbi .nbi-picture>.nbi-note{text-align:left}
.nbi.nbi .nbi-graph{display:block;margin:0 auto;font-family:var(--nbi-font)}
.nbi.nbi .nbi-picture>.nbi-graph{width:100%;max-width:calc(var(--nbi-w)*1px);min-width:calc(var(--nbi-w)*.92px);height:auto}
.nbi.nbi .nbi-edge path{fill:none;stroke:var(--nbi-muted);stroke-width:1.2px}
.nbi.nbi .nbi-edge polygon{fill:var(--nbi-muted);stroke:none}
.nbi.nbi .nbi-node rect{fill:var(--nbi-paper);stroke:color-mix(in srgb,var(--nbi-ink) 38%,var(--nbi-paper));stroke-width:1px}
.nbi.nbi .nbi-root rect{fill:var(--nbi-tint);stroke:var(--nbi-ink);stroke-width:2.5px}
.nbi.nbi .nbi-target rect{fill:var(--nbi-accent);stroke:var(--nbi-accent)}
.nbi.nbi .nbi-stub rect{stroke-dasharray:4 3}
.nbi.nbi .nbi-graph text{fill:var(--nbi-ink);stroke:none}
.nbi.nbi .nbi-graph .nbi-label{font:12px var(--nbi-mono)}
.nbi.nbi .nbi-graph .nbi-small,.nbi.nbi .nbi-graph .nbi-elabel{font:11px var(--nbi-font);fill:var(--nbi-muted)}
.nbi.nbi .nbi-graph .nbi-root .nbi-label{font-weight:700}
.nbi.nbi .nbi-graph .nbi-target text{fill:var(--nbi-paper)}
.nbi.nbi .nbi-graph text.nbi-elabel{paint-order:stroke;stroke:var(--nbi-paper);stroke-width:3px;stroke-linejoin:round}
.nbi.nbi .nbi-alert rect{stroke:var(--nbi-alert);stroke-width:2.5px}
.nbi.nbi .nbi-alert .nbi-small{fill:var(--nbi-ink)}
.nbi.nbi .nbi-graph .nbi-heat~.nbi-small{fill:var(--nbi-ink)}
.nbi.nbi .nbi-heat~foreignObject .nbi-words:not([data-b=""])::after{color:var(--nbi-ink)}
.nbi.nbi .nbi-frame rect{fill:none;stroke:var(--nbi-muted);stroke-width:1px}
.nbi.nbi .nbi-graph .nbi-frame-label{font:12px var(--nbi-font);fill:var(--nbi-muted)}
.nbi.nbi .nbi-frame-words{display:block;white-space:pre;overflow:hidden;text-align:left}
.nbi.nbi .nbi-frame-words::before{content:attr(data-a);font:12px/18px var(--nbi-font);color:var(--nbi-muted)}
.nbi.nbi .nbi-scale{display:flex;flex-wrap:wrap;align-items:center;gap:4px 8px;margin:6px 0 2px;font-size:12px;color:var(--nbi-muted)}
.nbi.nbi .nbi-ramp{display:inline-block;width:120px;height:10px;border-radius:2px;box-shadow:inset 0 0 0 1px var(--nbi-line)}
.nbi.nbi .nbi-words{display:flex;flex-direction:column;justify-content:center;height:100%;text-align:center;white-space:pre;overflow:hidden;color:var(--nbi-ink)}
.nbi.nbi .nbi-words::before{content:attr(data-a);font:12px/16px var(--nbi-mono)}
.nbi.nbi .nbi-words:not([data-b=""])::after{content:attr(data-b);font:11px/16px var(--nbi-font);color:var(--nbi-muted)}
.nbi.nbi .nbi-root .nbi-words::before{font-weight:700}
.nbi.nbi .nbi-target .nbi-words::before,.nbi.nbi .nbi-target .nbi-words::after{color:var(--nbi-paper)}
.nbi.nbi span.nbi-elabel{display:block;text-align:center;white-space:pre}
.nbi.nbi span.nbi-elabel::before{content:attr(data-a);font:11px/15px var(--nbi-font);color:var(--nbi-muted);background:var(--nbi-paper);padding:0 2px;border-radius:2px}
.nbi.nbi .nbi-stripe{stroke-width:4px;fill:none}
.nbi.nbi .nbi-tree{margin:0;padding:0;border:0;font:12px/1.5 var(--nbi-mono);color:inherit;background:none;white-space:pre;overflow-x:auto}
.nbi.nbi .nbi-fallback{display:none}
@container (max-width:499px){.nbi.nbi .nbi-from-5{display:none}.nbi.nbi .nbi-below-5{display:block}}
@container (max-width:599px){.nbi.nbi .nbi-from-6{display:none}.nbi.nbi .nbi-below-6{display:block}}
@container (max-width:699px){.nbi.nbi .nbi-from-7{display:none}.nbi.nbi .nbi-below-7{display:block}}
@container (max-width:799px){.nbi.nbi [class*=nbi-from-]:not(.nbi-from-5,.nbi-from-6,.nbi-from-7){display:none}.nbi.nbi [class*=nbi-below-]:not(.nbi-below-5,.nbi-below-6,.nbi-below-7){display:block}}
@container (max-width:560px){
.nbi.nbi .nbi-share{display:none}
.nbi.nbi .nbi-table th,.nbi.nbi .nbi-table td{padding-right:8px}
.nbi.nbi .nbi-table td.nbi-kind{white-space:normal}
.nbi.nbi .nbi-table .nbi-num .nbi-n{min-width:0}
}
"""


@functools.cache
def style_sheet() -> str:
    """Give the rules, without the ``<style>`` tag around them."""
    return "".join((_VARIABLES + _RULES).strip().splitlines()) + _hue_rules()


def _hue_rules() -> str:
    """Colour areas of bars, and stripes of boxes, which are dashed where areas have a hatch."""
    rules = []
    for name, look in HUES.items():
        fill = "transparent" if look.empty else look.fill
        image = f";background-image:{HATCH};stroke-dasharray:4 2" if look.hatched else ""
        rules.append(f".nbi.nbi .{css_class(name)}{{background-color:{fill}{image};stroke:{fill}}}")
    return "".join(rules)
