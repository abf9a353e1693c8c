// The report and its pictures, as `stagecraft report` writes them.

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/format/files/files.h"
#include "costmodel/format/results/plan_list_json.h"
#include "costmodel/report/report.h"
#include "python/bindings/bind.h"

namespace stagecraft::python {

namespace {

/// A picture as a file of its own.
struct Figure {
  std::string name;
  std::string title;
  std::string caption;
  std::string svg;
};

struct RenderedReport {
  std::string html;
  std::vector<Figure> figures;
  std::vector<std::string> notes;
};

/// Adds `value` to `list` if it is a T.
template <class T, class List>
bool added(List& list, const std::string& name, nb::handle value) {
  if (!nb::isinstance<T>(value)) return false;
  list.push_back({name, nb::cast<const T&>(value)});
  return true;
}

template <class T>
bool set(std::optional<FromFile<T>>& place, const std::string& name, nb::handle value) {
  if (!nb::isinstance<T>(value)) return false;
  if (place) throw std::invalid_argument(name + ": a report has one of these");
  place = FromFile<T>{name, nb::cast<const T&>(value)};
  return true;
}

RenderedReport report_of(const std::vector<std::pair<std::string, nb::object>>& values) {
  report::ReportDocuments documents;
  for (const auto& [name, value] : values) {
    const bool known =
        set(documents.graph, name, value) || set(documents.topology, name, value) ||
        added<Plan>(documents.plans, name, value) || added<Prediction>(documents.predictions, name, value) ||
        added<Measurement>(documents.runs, name, value) || added<Comparison>(documents.comparisons, name, value) ||
        added<format::PlanList>(documents.lists, name, value);
    if (!known)
      throw nb::type_error(
          (name + ": must be a Graph, Topology, Plan, Prediction, Measurement, Comparison or PlanList").c_str());
  }
  const nb::gil_scoped_release free;
  RenderedReport out;
  out.notes = complete(documents);
  const std::vector<report::Section> sections = report::sections(documents);
  for (const report::Section& section : sections) {
    for (const report::Picture& picture : section.pictures)
      out.figures.push_back({picture.name, picture.title, picture.caption, picture_file(picture)});
  }
  out.html = report_page(documents, sections, report::made_today());
  return out;
}

}  // namespace

void bind_report(nb::module_& module) {
  nb::class_<Figure>(module, "Figure", "A picture that notebooks show.")
      .def_ro("name", &Figure::name)
      .def_ro("title", &Figure::title)
      .def_ro("caption", &Figure::caption)
      .def_ro("svg", &Figure::svg, "The whole file.")
      .def(
          "save",
          [](const Figure& self, const std::filesystem::path& path) { format::write_text(path.string(), self.svg); },
          nb::arg("path"), "Writes it as an SVG file.")
      .def("_repr_svg_", [](const Figure& self) { return self.svg; })
      .def("__repr__", [](const Figure& self) { return fmt::format("Figure({}: {})", self.name, self.title); });
  nb::class_<RenderedReport> report(module, "Report", "One page about a model, its plans, predictions and runs.");
  report.def_ro("html", &RenderedReport::html, "The page; it needs no network.")
      .def_ro("notes", &RenderedReport::notes,
              "One sentence for each plan that cannot be predicted and each run that cannot "
              "be compared.")
      .def_prop_ro(
          "figures",
          [](const RenderedReport& self) {
            nb::dict out;
            for (const Figure& figure : self.figures) out[figure.name.c_str()] = figure;
            return out;
          },
          nb::sig("def figures(self) -> dict[str, Figure]"), "The page's pictures by name, in its order.")
      .def(
          "save",
          [](const RenderedReport& self, const std::filesystem::path& path) {
            format::write_text(path.string(), self.html);
          },
          nb::arg("path"), "Writes the page as an HTML file.")
      .def("__repr__", [](const RenderedReport& self) {
        return fmt::format("Report({} figures, {} characters)", self.figures.size(), self.html.size());
      });
  add_html(report, "report");
  module.def("report", &report_of, nb::arg("documents"));
}

}  // namespace stagecraft::python
