#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/operators.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/units.h"

// What the files of the Python module share.

/// Quantities are plain numbers in Python: float, or int for bytes. The property's name says the unit.
template <class Tag, class Rep>
struct nanobind::detail::type_caster<stagecraft::Quantity<Tag, Rep>> {
  using Quantity = stagecraft::Quantity<Tag, Rep>;
  NB_TYPE_CASTER(Quantity, make_caster<Rep>::Name)

  bool from_python(handle source, std::uint8_t flags, cleanup_list* cleanup) noexcept {
    make_caster<Rep> number;
    if (!number.from_python(source, flags, cleanup)) return false;
    value = Quantity(number.value);
    return true;
  }
  static handle from_cpp(const Quantity& quantity, rv_policy policy, cleanup_list* cleanup) noexcept {
    return make_caster<Rep>::from_cpp(quantity.value, policy, cleanup);
  }
};

namespace stagecraft::python {

namespace nb = nanobind;

/// The value of a result. Throws NoAnswerError, stagecraft.NoPlanError in Python, if there is none.
template <class T>
T value_of(std::variant<T, Infeasible> result) {
  if (const auto* infeasible = std::get_if<Infeasible>(&result)) throw NoAnswerError("", *infeasible);
  return std::move(std::get<T>(result));
}

/// Adds what every document has: from_json, to_json, load, save, ==, pickling. `parse(text, file)` reads one and
/// `write(value)` gives its text.
template <class T, class Parse, class Write>
void add_document(nb::class_<T>& type, Parse parse, Write write) {
  type.def_static(
      "from_json", [parse](const std::string& text) { return parse(text, "text"); }, nb::arg("text"),
      "The document in a text. Raises InputError that names the place in it.");
  type.def_static(
      "load",
      [parse](const std::filesystem::path& path) { return parse(format::read_text(path.string()), path.string()); },
      nb::arg("path"), "The document in a file. Raises InputError that names the file and the place in it.");
  type.def("to_json", [write](const T& self) { return write(self); }, "The document, as the programs write it.");
  type.def(
      "save",
      [write](const T& self, const std::filesystem::path& path) { format::write_text(path.string(), write(self)); },
      nb::arg("path"), "Writes the document to a file, all of it or nothing.");
  type.def("__getstate__", [write](const T& self) { return write(self); });
  type.def("__setstate__", [parse](T& self, const std::string& text) { new (&self) T(parse(text, "pickle")); });
  type.def(
      "__eq__",
      [write](const T& self, nb::handle other) {
        return nb::isinstance<T>(other) && write(self) == write(nb::cast<const T&>(other));
      },
      nb::arg("other").none());
}

/// Adds _repr_html_, which notebooks show: function `name` of stagecraft._html.
template <class T>
void add_html(nb::class_<T>& type, const char* name) {
  type.def("_repr_html_", [name](nb::handle_t<T> self) -> nb::str {
    return nb::cast<nb::str>(nb::module_::import_("stagecraft._html").attr(name)(self));
  });
}

void bind_inputs(nb::module_& module);
void bind_answers(nb::module_& module);
void bind_functions(nb::module_& module);
void bind_report(nb::module_& module);

}  // namespace stagecraft::python
