// {fmt} in the version whose headers LibTorch ships, compiled once: LibTorch doesn't export the library that it was
// built with, and header-only {fmt} adds two seconds to every file that formats text.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE

template auto locale_ref::get<std::locale>() const -> std::locale;

namespace detail {

template auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template auto thousands_sep_impl<wchar_t>(locale_ref) -> thousands_sep_result<wchar_t>;
template auto decimal_point_impl(locale_ref) -> char;
template auto decimal_point_impl(locale_ref) -> wchar_t;
template auto dragonbox::to_decimal(float) noexcept -> dragonbox::decimal_fp<float>;
template auto dragonbox::to_decimal(double) noexcept -> dragonbox::decimal_fp<double>;

}  // namespace detail
FMT_END_NAMESPACE
