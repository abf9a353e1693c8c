#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/analysis/explain.h"
#include "costmodel/format/escaping.h"
#include "costmodel/report/pictures.h"
#include "costmodel/report/report.h"
#include "costmodel/version.h"

namespace stagecraft::report {
namespace {

using format::markup_text;

constexpr const char* kPageStyle = R"(
:root{color-scheme:light dark;--paper:#fff;--ink:#1b1d21;--soft:#565b63;--line:#dfe2e6;--card:#f4f5f7;--accent:#0f6cab;--warn:#9a4300}
@media screen and (prefers-color-scheme:dark){:root{--paper:#15181d;--ink:#e9ebee;--soft:#a9b0ba;--line:#2c313a;--card:#1c2027;--accent:#6bbcf0;--warn:#ff9d5c}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1160px;padding:24px 28px 60px;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,"Segoe UI","Helvetica Neue",Arial,sans-serif}
h1{font-size:26px;margin:0 0 2px}h2{font-size:20px;margin:44px 0 8px;padding-top:14px;border-top:1px solid var(--line)}h3{font-size:14px;margin:22px 0 8px;color:var(--soft);font-weight:600;overflow-wrap:anywhere}
p{margin:6px 0;max-width:86ch;overflow-wrap:anywhere}.sub,figcaption,footer{color:var(--soft)}figcaption{font-size:13px;margin-top:6px;max-width:100ch}
nav{margin:14px 0 0;display:flex;flex-wrap:wrap;gap:4px 18px}a{color:var(--accent);text-decoration:none}a:hover{text-decoration:underline}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(170px,1fr));gap:12px}.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 14px}
.card b{display:block;font-size:21px;line-height:1.25}.card span{display:block}.card small{display:block;color:var(--soft);font-size:12px;line-height:1.35;margin-top:3px}
.warning{color:var(--warn);font-weight:600}figure{margin:16px 0 26px}.wide,.frame{overflow-x:auto}.frame svg{display:block;height:auto}.frame svg.whole{max-width:100%}
table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums;margin:10px 0}th,td{padding:4px 18px 4px 0;text-align:right;border-bottom:1px solid var(--line)}.left{text-align:left}th{color:var(--soft);font-weight:600}
.zoom{display:none;gap:6px;margin:0 0 6px}.zoom button{font:inherit;font-size:13px;padding:2px 12px;border:1px solid var(--line);border-radius:6px;background:var(--card);color:var(--ink);cursor:pointer}
@media print{body{max-width:none;padding:0}nav,.zoom{display:none!important}figure,.card,tr{break-inside:avoid}.frame,.wide{overflow:visible}.frame svg{max-width:100%}}
)";

/// Widens the time axis of each timeline about its centre; the page is complete without it.
constexpr const char* kScript = R"(
document.querySelectorAll('figure[data-zooms]').forEach(function(f){
  var s=f.querySelector('svg'),g=s.querySelector('.zoomable'),a=s.querySelector('.timeaxis'),bar=f.querySelector('.zoom');
  var L=+g.dataset.left,W=+g.dataset.width,z=1,o=0,NS='http://www.w3.org/2000/svg';
  var keep=[].map.call(g.querySelectorAll('rect,line'),function(e){return e.tagName=='rect'?[e,+e.getAttribute('x'),+e.getAttribute('width')]:[e,+e.getAttribute('x1'),0];});
  var ends=[].map.call(s.querySelectorAll('.endmark'),function(e){return [e,+e.getAttribute('x1')];});
  g.querySelectorAll('text').forEach(function(t){t.remove();});
  function at(x){return L+(x-L-o)*z;}
  function draw(){
    o=Math.max(0,Math.min(W-W/z,o));
    g.querySelectorAll('text').forEach(function(t){t.remove();});
    keep.forEach(function(k){var e=k[0],x=at(k[1]);
      if(e.tagName=='line'){e.setAttribute('x1',x);e.setAttribute('x2',x);return;}
      var w=k[2]*z;e.setAttribute('x',x);e.setAttribute('width',w);
      var m=e.dataset.m;if(m&&w>=6.4*m.length+3&&x+w>L&&x<L+W){var t=document.createElementNS(NS,'text');t.setAttribute('x',x+w/2);t.setAttribute('y',+e.getAttribute('y')+13);t.setAttribute('text-anchor','middle');t.setAttribute('font-size','11');t.setAttribute('class','dark');t.setAttribute('pointer-events','none');t.textContent=m;g.appendChild(t);}});
    ends.forEach(function(k){var x=at(k[1]);k[0].setAttribute('x1',x);k[0].setAttribute('x2',x);k[0].style.display=x<L||x>L+W+1?'none':'';});
    var t=a.querySelectorAll('text'),n=t.length-1,lo=+a.dataset.end*o/W,span=+a.dataset.end/z;
    t.forEach(function(e,i){e.textContent=+(lo+span*i/n).toPrecision(4);});
  }
  function by(f,c){var p=o+(c===undefined?W/2:c)/z;z=Math.max(1,Math.min(400,z*f));o=p-(c===undefined?W/2:c)/z;draw();}
  [['zoom in',function(){by(2);}],['zoom out',function(){by(.5);}],['left',function(){o-=W/z/3;draw();}],['right',function(){o+=W/z/3;draw();}],['whole step',function(){z=1;o=0;draw();}]].forEach(function(b){var e=document.createElement('button');e.type='button';e.textContent=b[0];e.onclick=b[1];bar.appendChild(e);});
  bar.style.display='flex';
  s.addEventListener('wheel',function(e){if(!e.ctrlKey)return;e.preventDefault();var r=s.getBoundingClientRect();by(e.deltaY<0?1.25:.8,Math.max(0,Math.min(W,(e.clientX-r.left)*s.viewBox.baseVal.width/r.width-L)));},{passive:false});
  draw();
});
)";

}  // namespace

std::string made_today() {
  return fmt::format("stagecraft {}, {:%Y-%m-%d}", version(), fmt::gmtime(std::time(nullptr)));
}

std::string report_page(const ReportDocuments& d, const std::vector<Section>& sections, const std::string& made) {
  std::string model = "stagecraft";
  if (d.graph)
    model = d.graph->value.name;
  else if (!d.plans.empty())
    model = d.plans.front().value.model;
  else if (!d.lists.empty())
    model = d.lists.front().value.model;
  else if (!d.runs.empty())
    model = d.runs.front().value.model;
  std::string out =
      "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\" "
      "class=\"stagecraft-report\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>" +
      markup_text(model) + " - stagecraft report</title>\n<style>" + kPageStyle + picture_style() +
      "</style>\n</head>\n<body>\n<header>\n<h1>" + markup_text(model) + "</h1>\n<div class=\"sub\">stagecraft report" +
      markup_text(made.empty() ? "" : ", " + made) + "</div>\n<nav>\n";
  for (const Section& section : sections)
    out += "<a href=\"#section-" + section.id + "\">" + markup_text(section.title) + "</a>\n";
  out += "</nav>\n</header>\n<main>\n";
  for (const Section& section : sections) {
    out +=
        "<section id=\"section-" + section.id + "\">\n<h2>" + markup_text(section.title) + "</h2>\n" + section.markup;
    for (const Picture& picture : section.pictures) {
      out += picture.zooms ? "<figure data-zooms=\"yes\"><div class=\"zoom\"></div>" : "<figure>";
      // Very wide pictures scroll, others shrink with the window.
      const std::size_t at = picture.inner.find(" width=\"") + 8;
      const bool wide = std::stod(picture.inner.substr(at, picture.inner.find('"', at) - at)) > 1600;
      std::string svg = picture.inner;
      if (!wide) svg.replace(svg.find("class=\"sc\""), 10, "class=\"sc whole\"");
      out += "<div class=\"frame\">\n" + svg + "</div>\n<figcaption>" + markup_text(picture.caption) +
             "</figcaption></figure>\n";
    }
    out += "</section>\n";
  }
  out += "</main>\n<script>//<![CDATA[";
  return out + kScript + "//]]></script>\n</body>\n</html>\n";
}

namespace {

constexpr double kWorthALine = 0.05;
constexpr double kSlower = 0.1;
constexpr std::size_t kShown = 3;

/// How much longer the slowest stage works than a rank does on average, and its label.
std::pair<double, std::string> imbalance(const Prediction& prediction) {
  Seconds most;
  Seconds sum;
  int ranks = 0;
  std::string label;
  for (const StageGroup& group : stage_groups(prediction)) {
    const Seconds work = group.sum.compute + group.sum.update + group.sum.reduce;
    sum += work * group.sum.replicas;
    ranks += group.sum.replicas;
    if (work <= most) continue;
    most = work;
    label = group.label;
  }
  if (ranks == 0 || sum <= Seconds(0)) return {0, ""};
  return {most / (sum / ranks) - 1, label};
}

}  // namespace

std::vector<std::string> next_steps(const Prediction& prediction) {
  if (prediction.iteration <= Seconds(0) || prediction.stages.empty()) return {};
  const StepParts parts = mean_parts(prediction);
  std::vector<std::pair<double, std::string>> found;
  const auto add = [&](double share, const std::string& text) {
    if (share >= kWorthALine) found.emplace_back(share, fmt::format(fmt::runtime(text), share * 100));
  };
  const auto [slower, slowest] = imbalance(prediction);
  // While the others wait for the slowest stage, the pipeline is not empty.
  const double uneven = slower >= kSlower ? slower / (1 + slower) : 0;
  add(uneven, slowest + fmt::format(" works {:.0f} % longer than the mean, so that the others wait: move a layer "
                                    "(stagecraft explain names the best one) or give it more replicas",
                                    slower * 100));
  add(parts.bubble / prediction.iteration - uneven,
      "the pipeline is empty for {:.1f} % of the step: try more --microbatches or --schedule best");
  add(parts.exposed_transfer / prediction.iteration,
      "ranks wait for messages for {:.1f} % of the step: faster links, or cuts where tensors are smaller");
  add(parts.reduce / prediction.iteration,
      "gradients are summed for {:.1f} % of the step, while nothing is computed: try --gradient-bucket-bytes, or more "
      "--microbatches per step");
  std::ranges::stable_sort(found, std::greater<>(), &std::pair<double, std::string>::first);
  std::vector<std::string> out;
  if (std::ranges::any_of(prediction.stages, [](const StagePrediction& stage) { return !stage.fits; }))
    out.emplace_back("it may not fit in memory: try --recompute, smaller microbatches or more stages");
  const std::size_t unused = prediction.unused_devices.size() + prediction.idle_devices.size();
  if (unused > 0) out.push_back(idle_text(prediction) + ": try more --microbatches, or fewer devices");
  for (const auto& [share, text] : found) out.push_back(text);
  if (const std::string low = low_share_text(prediction.rates, prediction.bubble); !low.empty()) out.push_back(low);
  if (out.size() > kShown) out.resize(kShown);
  return out;
}

}  // namespace stagecraft::report
