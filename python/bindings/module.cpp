#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/version.h"
#include "python/bindings/bind.h"

namespace {

namespace nb = nanobind;

/// Raises the exception `name` of stagecraft.errors.
void raise(const char* name, const char* text, stagecraft::ErrorKind kind) {
  const nb::object type = nb::module_::import_("stagecraft.errors").attr(name);
  const nb::object error = type(text);
  error.attr("code") = stagecraft::error_entry(kind).code;
  PyErr_SetObject(type.ptr(), error.ptr());
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const stagecraft::NoAnswerError& e) {
    raise("NoPlanError", e.what(), e.kind());
  } catch (const stagecraft::FormatError& e) {
    raise("InputError", e.what(), e.kind());
  } catch (const std::invalid_argument& e) { raise("InputError", e.what(), stagecraft::kind_of(e)); }
}

}  // namespace

NB_MODULE(_core, module) {
  nb::set_leak_warnings(false);  // other packages may keep objects until the interpreter ends
  module.doc() = "The cost model and the partitioner of stagecraft.";
  module.def("version", &stagecraft::version, "The version of stagecraft.");
  nb::register_exception_translator(translate);
  stagecraft::python::bind_inputs(module);
  stagecraft::python::bind_answers(module);
  stagecraft::python::bind_functions(module);
  stagecraft::python::bind_report(module);
}
