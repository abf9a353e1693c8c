#include <stdexcept>

#include "costmodel/version.h"
#include "python/bindings/bind.h"

namespace {

namespace nb = nanobind;

/// Raises the exception `name` of stagecraft.errors.
void raise(const char* name, const char* text) {
  const nb::object type = nb::module_::import_("stagecraft.errors").attr(name);
  PyErr_SetString(type.ptr(), text);
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const stagecraft::python::NoAnswer& e) {
    raise("NoPlanError", e.what());
  } catch (const stagecraft::FormatError& e) { raise("InputError", e.what()); } catch (const std::invalid_argument& e) {
    raise("InputError", e.what());
  }
}

}  // namespace

NB_MODULE(_core, module) {
  module.doc() = "The cost model and the partitioner of stagecraft.";
  module.def("version", &stagecraft::version, "The version of stagecraft.");
  nb::register_exception_translator(translate);
  stagecraft::python::bind_inputs(module);
  stagecraft::python::bind_answers(module);
  stagecraft::python::bind_functions(module);
  stagecraft::python::bind_report(module);
}
