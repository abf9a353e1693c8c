#include "executor/files/torch_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/index.h"

// A pickle is a program for a stack machine. This interprets only the opcodes that torch.save writes for state dicts,
// like torch's weights_only loader; source: Lib/pickletools.py, torch/_weights_only_unpickler.py.

namespace stagecraft::files {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are copied unchanged");

/// Bounds memory and work for a broken file.
constexpr std::size_t kMostObjects = std::size_t{1} << 22;
constexpr std::size_t kMostAxes = 64;

enum class PickledKind {
  Mark,
  Other,  ///< None, booleans, floats and results of known functions that are not tensors
  Integer,
  Text,
  Tuple,
  List,
  Dict,
  Global,
  Storage,
  Tensor,
};

struct Object {
  PickledKind kind = PickledKind::Other;
  std::int64_t integer = 0;
  std::string text = {};          ///< of Text; "module name" of a Global
  std::vector<int> members = {};  ///< of tuples and lists; of a dict key, value, key, value, ...
  PickledTensor tensor = {};      ///< of Storage and Tensor
};

const char* word(PickledKind kind) {
  switch (kind) {
    case PickledKind::Mark:
      return "a mark";
    case PickledKind::Other:
      return "another value";
    case PickledKind::Integer:
      return "an integer";
    case PickledKind::Text:
      return "text";
    case PickledKind::Tuple:
      return "a tuple";
    case PickledKind::List:
      return "a list";
    case PickledKind::Dict:
      return "a dict";
    case PickledKind::Global:
      return "a class or function";
    case PickledKind::Storage:
      return "a storage";
    case PickledKind::Tensor:
      return "a tensor";
  }
  return "";
}

const std::vector<std::pair<std::string, at::ScalarType>>& storages() {
  static const std::vector<std::pair<std::string, at::ScalarType>> table{
      {"torch DoubleStorage", at::kDouble},     {"torch FloatStorage", at::kFloat}, {"torch HalfStorage", at::kHalf},
      {"torch BFloat16Storage", at::kBFloat16}, {"torch LongStorage", at::kLong},   {"torch IntStorage", at::kInt},
      {"torch ShortStorage", at::kShort},       {"torch CharStorage", at::kChar},   {"torch ByteStorage", at::kByte},
      {"torch BoolStorage", at::kBool},
  };
  return table;
}

constexpr const char* kOrderedDict = "collections OrderedDict";
constexpr const char* kTensor = "torch._utils _rebuild_tensor_v2";
constexpr const char* kParameter = "torch._utils _rebuild_parameter";

const std::vector<std::string>& known_globals() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out{kOrderedDict, kTensor, kParameter};
    for (const auto& [name, dtype] : storages()) out.push_back(name);
    return out;
  }();
  return names;
}

/// The stack machine. Objects are named by their number, so that a value may hold itself and nothing leaks.
class PickleMachine {
 public:
  PickleMachine(const std::string& pickle, const std::string& file) : pickle_(pickle), file_(file) {}

  /// Runs to the end and returns the number of the resulting object.
  int run() {
    for (;;) {
      place_ = at_;
      const auto code = static_cast<unsigned char>(take(1).front());
      if (code == '.') return pop();
      step(code);
    }
  }
  [[nodiscard]] const Object& object(int number) const { return objects_[to_index(number)]; }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw FormatError(fmt::format("{}: byte {} of the pickle: {}", file_, place_, what));
  }

  std::string take(std::uint64_t count) {
    if (count > pickle_.size() - at_) fail("the pickle ends too early");
    at_ += count;
    return pickle_.substr(at_ - count, count);
  }
  std::string line() {
    const std::size_t end = pickle_.find('\n', at_);
    if (end == std::string::npos) fail("the pickle ends too early");
    std::string out = take(end - at_);
    (void)take(1);
    return out;
  }
  template <class T>
  T number() {
    T out{};
    std::memcpy(&out, take(sizeof out).data(), sizeof out);
    return out;
  }
  /// Two's complement of any length, little-endian; more than 8 bytes are not needed.
  std::int64_t long_number(std::uint64_t count) {
    if (count > sizeof(std::int64_t)) fail(fmt::format("found an integer of {} bytes, expected at most 8", count));
    const std::string bytes = take(count);
    std::uint64_t out = !bytes.empty() && (bytes.back() & 0x80) != 0 ? ~std::uint64_t{0} : 0;
    std::memcpy(&out, bytes.data(), bytes.size());
    return static_cast<std::int64_t>(out);
  }

  int make(Object object) {
    if (objects_.size() == kMostObjects) fail(fmt::format("found more than {} values", kMostObjects));
    objects_.push_back(std::move(object));
    return to_int(objects_.size()) - 1;
  }
  void push(Object object) { stack_.push_back(make(std::move(object))); }
  int pop() {
    if (stack_.empty()) fail("the stack is empty");
    const int out = stack_.back();
    stack_.pop_back();
    return out;
  }
  Object& top(PickledKind wanted) {
    if (stack_.empty()) fail("the stack is empty");
    Object& out = objects_[to_index(stack_.back())];
    if (out.kind != wanted) fail(fmt::format("found {}, expected {}", word(out.kind), word(wanted)));
    return out;
  }
  const Object& wanted(int number, PickledKind kind) const {
    const Object& out = object(number);
    if (out.kind != kind) fail(fmt::format("found {}, expected {}", word(out.kind), word(kind)));
    return out;
  }
  /// Everything above the last mark, which is removed too.
  std::vector<int> above_mark() {
    std::vector<int> out;
    for (int number = pop(); object(number).kind != PickledKind::Mark; number = pop()) out.push_back(number);
    std::ranges::reverse(out);
    return out;
  }
  void push_tuple(std::vector<int> members) { push({.kind = PickledKind::Tuple, .members = std::move(members)}); }
  void push_tuple(int count) {
    std::vector<int> members(to_index(count));
    for (int i = count - 1; i >= 0; --i) members[to_index(i)] = pop();
    push_tuple(std::move(members));
  }
  void push_text(std::string text) { push({.kind = PickledKind::Text, .text = std::move(text)}); }
  void push_integer(std::int64_t value) { push({.kind = PickledKind::Integer, .integer = value}); }

  void remember(std::uint64_t key) {
    if (stack_.empty()) fail("the stack is empty");
    memo_[key] = stack_.back();
  }
  void recall(std::uint64_t key) {
    const auto it = memo_.find(key);
    if (it == memo_.end()) fail(fmt::format("value {} is not in the memo", key));
    stack_.push_back(it->second);
  }

  void push_global(const std::string& module, const std::string& name) {
    const std::string whole = module + " " + name;
    if (std::ranges::find(known_globals(), whole) == known_globals().end()) {
      fail(
          fmt::format("class or function \"{}.{}\" is not needed by a state dict of tensors and is not executed; save "
                      "only the state dict",
                      module, name));
    }
    push({.kind = PickledKind::Global, .text = whole});
  }

  void add_items(const std::vector<int>& items) {
    if (items.size() % 2 != 0) fail("found a key without a value");
    Object& dict = top(PickledKind::Dict);
    dict.members.insert(dict.members.end(), items.begin(), items.end());
  }
  void add_members(const std::vector<int>& items) {
    Object& list = top(PickledKind::List);
    list.members.insert(list.members.end(), items.begin(), items.end());
  }

  std::vector<std::int64_t> integers(int tuple) const {
    const std::vector<int>& members = wanted(tuple, PickledKind::Tuple).members;
    if (members.size() > kMostAxes) fail(fmt::format("found {} axes, expected at most {}", members.size(), kMostAxes));
    std::vector<std::int64_t> out;
    for (const int member : members) {
      const std::int64_t value = wanted(member, PickledKind::Integer).integer;
      if (value < 0) fail(fmt::format("found {} in a shape or strides, must be at least 0", value));
      out.push_back(value);
    }
    return out;
  }

  /// ("storage", class, key, device, values)
  void push_storage(int id) {
    const Object& tuple = wanted(id, PickledKind::Tuple);
    if (tuple.members.size() != 5 || wanted(tuple.members[0], PickledKind::Text).text != "storage")
      fail("found a persistent id that is not a storage");
    Object out{.kind = PickledKind::Storage};
    const std::string& type = wanted(tuple.members[1], PickledKind::Global).text;
    const auto known = std::ranges::find(storages(), type, &std::pair<std::string, at::ScalarType>::first);
    if (known == storages().end()) fail("found a storage of unknown type");
    out.tensor.dtype = known->second;
    out.tensor.storage = wanted(tuple.members[2], PickledKind::Text).text;
    out.tensor.storage_values = wanted(tuple.members[4], PickledKind::Integer).integer;
    if (out.tensor.storage_values < 0) fail("found a storage of negative length");
    push(std::move(out));
  }

  /// (storage, offset, shape, strides, requires_grad, hooks[, metadata])
  Object tensor(const std::vector<int>& arguments) const {
    if (arguments.size() != 6 && arguments.size() != 7)
      fail(fmt::format("found a tensor of {} parts, expected 6 or 7", arguments.size()));
    Object out{.kind = PickledKind::Tensor, .tensor = wanted(arguments[0], PickledKind::Storage).tensor};
    PickledTensor& tensor = out.tensor;
    tensor.offset = wanted(arguments[1], PickledKind::Integer).integer;
    tensor.shape = integers(arguments[2]);
    tensor.strides = integers(arguments[3]);
    if (tensor.shape.size() != tensor.strides.size())
      fail(fmt::format("found {} sizes and {} strides", tensor.shape.size(), tensor.strides.size()));
    const bool empty = std::ranges::find(tensor.shape, 0) != tensor.shape.end();
    std::int64_t values = 1;
    std::int64_t last = tensor.offset;
    bool fits = tensor.offset >= 0 && tensor.offset <= tensor.storage_values;
    for (std::size_t axis = 0; fits && !empty && axis < tensor.shape.size(); ++axis) {
      std::int64_t reach = 0;
      fits = !__builtin_mul_overflow(tensor.shape[axis] - 1, tensor.strides[axis], &reach) &&
             !__builtin_add_overflow(last, reach, &last) &&
             !__builtin_mul_overflow(values, tensor.shape[axis], &values) && values <= tensor.storage_values;
    }
    if (!fits || (!empty && last >= tensor.storage_values))
      fail(fmt::format("found a tensor that does not lie within its storage of {} values", tensor.storage_values));
    return out;
  }

  void call() {
    const std::vector<int>& arguments = wanted(pop(), PickledKind::Tuple).members;
    const std::string& function = wanted(pop(), PickledKind::Global).text;
    if (function == kOrderedDict && arguments.empty()) return push({.kind = PickledKind::Dict});
    if (function == kTensor) return push(tensor(arguments));
    // (tensor, requires_grad, hooks)
    if (function == kParameter && arguments.size() == 3) return push(wanted(arguments[0], PickledKind::Tensor));
    fail(fmt::format("found a call to \"{}\" with {} arguments", function, arguments.size()));
  }

  /// A state dict carries its modules' versions as an attribute, which does not concern tensors.
  void ignore_attributes() {
    (void)pop();
    (void)top(PickledKind::Dict);
  }

  void step(unsigned char code) {
    switch (code) {
      case 0x80: {  // PROTO
        const int version = number<std::uint8_t>();
        if (version < 2 || version > 5) fail(fmt::format("found pickle protocol {}, expected 2 to 5", version));
        return;
      }
      case 0x95:  // FRAME
        return (void)take(8);
      case '(':
        return push({.kind = PickledKind::Mark});
      case '0':
        return (void)pop();
      case '1':  // POP_MARK
        return (void)above_mark();
      case 'N':   // None
      case 0x88:  // True
      case 0x89:  // False
        return push({});
      case 'G':  // BINFLOAT
        (void)take(8);
        return push({});
      case 'K':
        return push_integer(number<std::uint8_t>());
      case 'M':
        return push_integer(number<std::uint16_t>());
      case 'J':
        return push_integer(number<std::int32_t>());
      case 0x8a:  // LONG1
        return push_integer(long_number(number<std::uint8_t>()));
      case 'U':   // SHORT_BINSTRING
      case 0x8c:  // SHORT_BINUNICODE
        return push_text(take(number<std::uint8_t>()));
      case 'X':  // BINUNICODE
        return push_text(take(number<std::uint32_t>()));
      case 0x8d:  // BINUNICODE8
        return push_text(take(number<std::uint64_t>()));
      case ')':
        return push_tuple(0);
      case 't':
        return push_tuple(above_mark());
      case 0x85:
      case 0x86:
      case 0x87:
        return push_tuple(code - 0x84);
      case ']':
        return push({.kind = PickledKind::List});
      case 'a': {  // APPEND
        const int member = pop();
        return add_members({member});
      }
      case 'e':
        return add_members(above_mark());
      case '}':
        return push({.kind = PickledKind::Dict});
      case 's': {  // SETITEM
        const int value = pop();
        const int key = pop();
        return add_items({key, value});
      }
      case 'u':
        return add_items(above_mark());
      case 'q':
        return remember(number<std::uint8_t>());
      case 'r':
        return remember(number<std::uint32_t>());
      case 0x94:  // MEMOIZE
        return remember(memo_.size());
      case 'h':
        return recall(number<std::uint8_t>());
      case 'j':
        return recall(number<std::uint32_t>());
      case 'c': {
        const std::string module = line();
        return push_global(module, line());
      }
      case 0x93: {  // STACK_GLOBAL
        const std::string name = wanted(pop(), PickledKind::Text).text;
        return push_global(wanted(pop(), PickledKind::Text).text, name);
      }
      case 'R':
        return call();
      case 'b':
        return ignore_attributes();
      case 'Q':
        return push_storage(pop());
      default:
        fail(fmt::format("found opcode {:#04x}, which state dicts do not use", code));
    }
  }

  const std::string& pickle_;
  const std::string& file_;
  std::size_t at_ = 0;
  std::size_t place_ = 0;  ///< of the current instruction
  std::deque<Object> objects_;
  std::vector<int> stack_;
  std::map<std::uint64_t, int> memo_;
};

/// The value under `name`, the last one if there are several; -1 if none.
int find_key(const PickleMachine& machine, const Object& dict, const std::string& name) {
  int out = -1;
  for (std::size_t i = 0; i < dict.members.size(); i += 2) {
    const Object& key = machine.object(dict.members[i]);
    if (key.kind == PickledKind::Text && key.text == name) out = dict.members[i + 1];
  }
  return out;
}

}  // namespace

std::map<std::string, PickledTensor> parse_state_dict(const std::string& pickle, const std::string& file) {
  PickleMachine machine(pickle, file);
  int root = machine.run();
  for (const char* name : {"state_dict", "model"}) {
    const Object& whole = machine.object(root);
    if (whole.kind != PickledKind::Dict) break;
    const int inner = find_key(machine, whole, name);
    if (inner < 0 || machine.object(inner).kind != PickledKind::Dict) continue;
    root = inner;
    break;
  }
  const Object& dict = machine.object(root);
  if (dict.kind != PickledKind::Dict)
    throw FormatError(fmt::format("{}: found {}, expected a state dict", file, word(dict.kind)));
  std::map<std::string, PickledTensor> out;
  for (std::size_t i = 0; i < dict.members.size(); i += 2) {
    const Object& key = machine.object(dict.members[i]);
    const Object& value = machine.object(dict.members[i + 1]);
    if (key.kind != PickledKind::Text) throw FormatError(fmt::format("{}: found {} as a name", file, word(key.kind)));
    // What a module's get_extra_state returns.
    if (key.text == "_extra_state" || key.text.ends_with("._extra_state")) continue;
    if (value.kind != PickledKind::Tensor) {
      throw FormatError(fmt::format(
          "{}: \"{}\": found {}, expected a tensor; a state dict may also be under \"state_dict\" or \"model\"", file,
          key.text, word(value.kind)));
    }
    out[key.text] = value.tensor;
  }
  return out;
}

}  // namespace stagecraft::files
