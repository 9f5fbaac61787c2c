/* The operators of compiled forwards (kernels/aot_compile.py): eyas::attend and eyas::packed_linear.

   eyas::packed_linear calls the function that eyas_set_linear has set.

   eyas_enter says what the thread's next forward attends to: paged memory on a CPU, without a step in Python, or, where
   the function is null, whatever Python has registered as eyas::attend_in_python. */

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/inductor/aoti_torch/utils.h>
#include <torch/library.h>

#include <optional>

#include "cpu_attention.h"
#include "cpu_linear.h"

namespace {

using Tensor = at::Tensor;
using Attend = Tensor(const Tensor &, const Tensor &, const Tensor &, int64_t, double, std::optional<int64_t>,
                      std::optional<int64_t>, std::optional<double>, const std::optional<Tensor> &);

struct Now {
  decltype(&eyas_attend) attend;
  forward *f;
  char *keys; /* of layer 0 */
  int64_t layer_bytes, values_bytes;
};
thread_local Now now{};

/* The same rows, places of a head side by side. */
Tensor rows(const Tensor &part) { return part.stride(2) == 1 ? part : part.contiguous(); }

Tensor attend(const Tensor &q_TNH, const Tensor &k_TGH, const Tensor &v_TGH, int64_t layer, double scale,
              std::optional<int64_t> window, std::optional<int64_t> chunk, std::optional<double> softcap,
              const std::optional<Tensor> &sinks_N) {
  if (now.attend == nullptr) {
    static const auto in_python =
        c10::Dispatcher::singleton().findSchemaOrThrow("eyas::attend_in_python", "").typed<Attend>();
    return in_python.call(q_TNH, k_TGH, v_TGH, layer, scale, window, chunk, softcap, sinks_N);
  }
  const Tensor q = rows(q_TNH), k = rows(k_TGH), v = rows(v_TGH);
  forward &f = *now.f;
  const auto type = q.scalar_type();
  TORCH_CHECK(type == at::kFloat || type == at::kBFloat16, "attention of ", type);
  TORCH_CHECK(k.scalar_type() == type && v.scalar_type() == type, "queries, keys and values of several types");
  TORCH_CHECK(q.size(0) == f.num_rows && q.size(1) % f.num_kv_heads == 0 && q.size(2) == f.head_dim, q.sizes());
  const std::vector<int64_t> kept{f.num_rows, f.num_kv_heads, f.head_dim};
  TORCH_CHECK(k.sizes() == kept && v.sizes() == kept, k.sizes(), v.sizes());
  f.num_heads = static_cast<int32_t>(q.size(1));
  f.new_is_bf16 = type == at::kBFloat16;
  f.q_row = q.stride(0), f.q_head = q.stride(1);
  f.k_row = k.stride(0), f.k_head = k.stride(1);
  f.v_row = v.stride(0), f.v_head = v.stride(1);
  const Tensor sinks = sinks_N ? sinks_N->to(at::kFloat).contiguous() : Tensor();
  const rule asked{
      sinks_N ? sinks.const_data_ptr<float>() : nullptr,
      static_cast<float>(scale),
      static_cast<float>(softcap.value_or(0.0)),
      static_cast<int32_t>(window.value_or(0)),
      static_cast<int32_t>(chunk.value_or(0)),
  };
  Tensor out = at::empty(q.sizes(), q.options());
  char *keys = now.keys + layer * now.layer_bytes;
  const int failed = now.attend(&f, &asked, q.const_data_ptr(), k.const_data_ptr(), v.const_data_ptr(), keys,
                                keys + now.values_bytes, out.mutable_data_ptr());
  TORCH_CHECK(!failed, "no memory for partial sums of attention");
  return out;
}

decltype(&eyas_linear) compute_linear = nullptr;

Tensor apply_linear(const Tensor &x, const Tensor &packed, const std::optional<Tensor> &bias, int64_t num_out) {
  TORCH_CHECK(compute_linear != nullptr, "eyas_set_linear was not called");
  const auto type = packed.scalar_type();
  TORCH_CHECK(x.scalar_type() == type && (type == at::kFloat || type == at::kBFloat16), "linear of ", x.scalar_type());
  const int64_t num_in = x.size(-1), per_step = type == at::kBFloat16 ? 2 : 1;
  TORCH_CHECK(packed.is_contiguous() && packed.dim() == 4 && packed.size(3) == per_step, packed.sizes());
  TORCH_CHECK(packed.size(1) == (num_in + per_step - 1) / per_step, x.sizes(), packed.sizes());
  TORCH_CHECK(num_out <= packed.size(0) * packed.size(2), num_out, packed.sizes());
  const Tensor rows = x.reshape({-1, num_in}).contiguous();
  const Tensor added = bias ? bias->to(at::kFloat).contiguous() : Tensor();
  auto sizes = x.sizes().vec();
  sizes.back() = num_out;
  Tensor out = at::empty(sizes, x.options());
  const struct linear layer{rows.const_data_ptr(), packed.const_data_ptr(),
                            bias ? added.const_data_ptr<float>() : nullptr, out.mutable_data_ptr(),
                            num_in, rows.size(0), num_in, num_out, type == at::kBFloat16, at::get_num_threads()};
  TORCH_CHECK(!compute_linear(&layer), "no memory for the rows of a linear layer");
  return out;
}

}  // namespace

// Compiled forwards call these functions (aot_compile.py declares them), because torch's dispatcher takes microseconds.

namespace aoti = torch::aot_inductor;

template <typename T>
static std::optional<T> value(const T *given) {
  return given ? std::make_optional(*given) : std::nullopt;
}

static const Tensor &tensor(AtenTensorHandle handle) { return *aoti::tensor_handle_to_tensor_pointer(handle); }

static std::optional<Tensor> tensor(const AtenTensorHandle *handle) {
  return handle ? std::make_optional(tensor(*handle)) : std::nullopt;
}

extern "C" AOTITorchError aoti_torch_cpu_attend(AtenTensorHandle q, AtenTensorHandle k, AtenTensorHandle v,
                                                int64_t layer, double scale, int64_t *window, int64_t *chunk,
                                                double *softcap, AtenTensorHandle *sinks, AtenTensorHandle *out) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE(
      *out = aoti::new_tensor_handle(attend(tensor(q), tensor(k), tensor(v), layer, scale, value(window), value(chunk),
                                            value(softcap), tensor(sinks)));)
}

extern "C" AOTITorchError aoti_torch_cpu_packed_linear(AtenTensorHandle x, AtenTensorHandle packed,
                                                       AtenTensorHandle *bias, int64_t num_out, AtenTensorHandle *out) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE(
      *out = aoti::new_tensor_handle(apply_linear(tensor(x), tensor(packed), tensor(bias), num_out));)
}

extern "C" void eyas_set_linear(void *function) {
  compute_linear = reinterpret_cast<decltype(&eyas_linear)>(function);
}

extern "C" void eyas_enter(void *attend, void *f, void *keys, int64_t layer_bytes, int64_t values_bytes) {
  now = {reinterpret_cast<decltype(&eyas_attend)>(attend), static_cast<forward *>(f), static_cast<char *>(keys),
         layer_bytes, values_bytes};
}

#define EYAS_RULE "int layer, float scale, int? window, int? chunk, float? softcap, Tensor? sinks"

TORCH_LIBRARY(eyas, m) {
  m.def("attend(Tensor q, Tensor k, Tensor v, " EYAS_RULE ") -> Tensor");
  m.def("attend_in_python(Tensor q, Tensor k, Tensor v, " EYAS_RULE ") -> Tensor");
  m.def("packed_linear(Tensor x, Tensor packed, Tensor? bias, int num_out) -> Tensor");
}

TORCH_LIBRARY_IMPL(eyas, CPU, m) {
  m.impl("attend", attend);
  m.impl("packed_linear", apply_linear);
}
