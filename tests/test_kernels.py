"""Kernels by name, and the difference of two profiles."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_lib.model import Kernel, KernelTable
from bench_lib.profiling.kernels import ENOUGH, MOST_KERNELS, blamed, diff, reason, table, tidy
from bench_lib.profiling.names import REST, family, is_convolution, library, readable, role, short

ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::Half>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::Half>, std::array<char*, 3ul>)"
)
CLAMP = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::"
    "launch_clamp_scalar(at::TensorIteratorBase&, c10::Scalar)::{lambda()#1}::operator()() const::"
    "{lambda(float)#1}, std::array<char*, 2ul> >(int, std::array<char*, 2ul>)"
)
MEAN = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<c10::BFloat16, "
    "at::native::MeanOps<c10::BFloat16, float, float, c10::BFloat16>, unsigned int, 4> >(int)"
)
COPY = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<"
    "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() "
    "const::{lambda(c10::Half)#1}>(at::TensorIteratorBase&)::{lambda(int)#1}>(int)"
)
FILL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, "
    "std::array<char*, 1ul> >(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)"
)
CUTLASS = "void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_f16_128x64_64x6_nt_align8>(Params)"
XMMA = (
    "sm90_xmma_wgrad_indexed_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize64x128x64_"
    "warpgroupsize1x1x1_g1_execute_segment_k_off_kernel__5x_cudnn"
)
IGEMM = "igemm_wrw_gtcx3_nhwc_fp16_bx0_ex1_bt256x128x32_wt32x32x8_ws2x2_wr2x2_ta1x4x1x8_gkgs"
TENSILE = "Cijk_Ailk_Bljk_HHS_BH_MT128x96x16_MI16x16x16_SN_1LDSB0_APM1_ABV0_WGM8.kd"
NVJET = "nvjet_sm90_hsh_256x128_64x4_1x2_h_bz_coopA_NNT"


@pytest.mark.parametrize(
    ("name", "does", "shown"),
    [
        (ADD, "elementwise", "vectorized_elementwise_kernel add fp16"),
        (CLAMP, "elementwise", "vectorized_elementwise_kernel launch_clamp_scalar fp32"),
        (MEAN, "reduction", "reduce_kernel Mean bf16"),
        (CUTLASS, "GEMM", "cutlass_80_tensorop_s16816gemm_f16_128x64_64x6_nt_align8"),
        (
            XMMA,
            "conv bwd-weights",
            "sm90_xmma_wgrad_indexed_implicit_gemm_f16f…32_nhwckrsc_64x128x64",
        ),
        (IGEMM, "conv bwd-weights", "igemm_wrw_gtcx3_nhwc_fp16_256x128x32"),
        (TENSILE, "GEMM", "Cijk_Ailk_Bljk_HHS_BH_MT128x96x16"),
        (NVJET, "GEMM", NVJET),
        ("MIOpenBatchNormBwdSpatial", "batch norm", "MIOpenBatchNormBwdSpatial"),
        ("__amd_rocclr_copyBuffer", "copy", "__amd_rocclr_copyBuffer"),
        (COPY, "copy", "elementwise_kernel direct_copy fp16"),
        (FILL, "fill", "vectorized_elementwise_kernel Fill fp32"),
        ("bwd_kernel_dk_dv", "attention", "bwd_kernel_dk_dv"),
        ("Memcpy HtoD (Pinned -> Device)", "copy", "Memcpy HtoD pinned"),
        ("Memset (Device)", "fill", "Memset"),
        (
            "rccl_main_kernel(ncclDevComm*, unsigned long, ncclWork*)",
            "collective",
            "rccl_main_kernel",
        ),
        ("triton_poi_fused_native_batch_norm_relu_3", "fused elementwise", None),
        ("triton_red_fused_mean_7", "fused reduction", None),
        ("triton_tem_fused_mm_2", "GEMM", None),
        ("void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>, false>(P)", "attention", None),
        ("aten::mkldnn_convolution", "conv", None),
        ("aten::addmm", "GEMM", None),
        ("void my_kernel(float*)", "other", "my_kernel"),
        ("", "other", ""),
    ],
)
def test_a_kernel_is_known_by_what_it_does_and_by_a_short_name(name, does, shown):
    assert role(name) == does
    assert shown is None or short(name) == shown


@pytest.mark.parametrize(
    ("name", "label"),
    [
        (TENSILE, "hipBLASLt or rocBLAS (Tensile)"),
        ("attn_fwd", "AOTriton"),
        ("bwd_kernel_dk_dv", "AOTriton"),
        ("triton_poi_fused_add_relu_3", "Inductor"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "RCCL or NCCL"),
        ("_ZN2ck27kernel_gemm_xdl_cshuffle_v3IfEEvT_.kd", "CK"),
        ("void ck::kernel_grouped_conv_fwd<float>(float)", "CK"),
        ("void ck_tile::kentry<256, ck_tile::FmhaFwdKernel<float>>(float)", "CK"),
        ("Custom_Cijk_Alik_Bljk_BBS_BH_MT256x256x64", "hipBLASLt or rocBLAS (Tensile)"),
        (IGEMM, "MIOpen"),
        ("miopenSp3AsmConv_v30_3_1_gfx94x_fp16_dot2", "MIOpen"),
        (XMMA, "cuDNN"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64", "cuDNN"),
        ("void cudnn::engines_precompiled::nchwToNhwcKernel<__half, __half>(int)", "cuDNN"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_ffma_kernel", None),
        (NVJET, "cuBLAS"),
        (ADD, None),
        ("void check_triton(float*)", None),
    ],
)
def test_a_kernel_s_library_is_known_by_its_name(name, label):
    known = library(name)
    assert (known and known[0]) == label


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (XMMA, XMMA.replace("64x128x64", "128x128x32")),
        (IGEMM, IGEMM.replace("bt256x128x32_wt32x32x8", "bt128x128x32_wt16x16x16")),
        (TENSILE, TENSILE.replace("MT128x96x16_MI16x16x16", "MT256x256x32_MI32x32x8")),
        (NVJET, NVJET.replace("256x128_64x4", "128x256_64x6")),
        (CUTLASS, CUTLASS.replace("128x64_64x6", "256x128_32x3")),
        (ADD, ADD.replace("<4, ", "<8, ").replace("3ul", "2ul")),
        ("triton_poi_fused_add_relu_3", "triton_poi_fused_add_relu_11"),
        ("void f<128, 4, true>(int)", "void f<256, 2, false>(int, int)"),
    ],
)
def test_tiles_and_template_numbers_do_not_make_another_family(old, new):
    assert family(old) == family(new)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ADD, CLAMP),
        (ADD, ADD.replace("Half", "BFloat16")),
        (XMMA, XMMA.replace("wgrad", "dgrad")),
        (IGEMM, IGEMM.replace("nhwc", "nchw")),
        (TENSILE, TENSILE.replace("Ailk_Bljk", "Alik_Bljk")),
        (NVJET, NVJET.replace("NNT", "TNT")),
        ("triton_poi_fused_add_relu_3", "triton_poi_fused_add_3"),
    ],
)
def test_other_work_types_and_layouts_are_other_families(one, other):
    assert family(one) != family(other)


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("aten::cudnn_convolution", True),
        ("aten::conv_transpose2d", True),
        (XMMA, True),
        ("aten::_convert_weight_to_int4pack", False),
        ("aten::transpose", False),
        ("batched_transpose_64x16_dword", False),
        ("", False),
    ],
)
def test_convolutions_are_told_from_what_only_sounds_so(name, is_one):
    assert is_convolution(name) == is_one


def test_mangled_names_are_read_and_broken_ones_left():
    assert readable("_Z10add_kernelPfS_i.kd") == "add_kernel(float*, float*, int)"
    assert readable("_Z10add_kernelPfS_i [clone .kd]") == "add_kernel(float*, float*, int)"
    assert readable("_ZN17cutlass__5x_cudnn6KernelINS_4conv6ker") == (
        "_ZN17cutlass__5x_cudnn6KernelINS_4conv6ker"
    )
    assert readable("plain.kd") == "plain"


# --- two profiles --------------------------------------------------------------------------


def profile(*kernels):
    return KernelTable("torch.profiler", 5, [Kernel(n, c, ms / 1e3) for n, c, ms in kernels])


def test_kernels_are_matched_by_name_then_without_tiles_then_by_their_work():
    naive = "naive_conv_ab_packed_wrw_nhwc_half_double_half"
    before = profile((ADD, 3, 1), (NVJET, 2, 4), (IGEMM, 61, 1.9), ("gone_kernel", 1, 0.5))
    after = profile(
        (ADD, 3, 1.25),
        (NVJET.replace("64x4", "64x8"), 2, 3),
        (naive, 61, 4),
        ("Memcpy DtoD (Device -> Device)", 3, 0.2),
    )
    found = diff(before, after)
    assert [(c.kind, c.role, round(c.delta_s * 1e3, 6)) for c in found.changes] == [
        ("replaced", "conv bwd-weights", 2.1),
        ("replaced", "GEMM", -1.0),
        ("gone", "other", -0.5),
        ("slower", "elementwise", 0.25),
        ("new", "copy", 0.2),
    ]
    assert found.delta_s == pytest.approx(1.05e-3)
    assert found.changes[0].name == f"igemm_wrw_gtcx3_nhwc_fp16_256x128x32 → {short(naive)}"


def test_what_is_blamed_can_be_compared_from_case_to_case():
    before = [Kernel("gemm_a", 1, 4e-3), Kernel("pool_b", 1, 1e-3)]
    after = [Kernel("gemm_a", 1, 4.5e-3), Kernel("pool_b", 1, 1.01e-3)]
    old = table(before, 1, "t")
    assert blamed(diff(old, table(after, 1, "t"))) == ["GEMM: gemm_a"]
    assert blamed(diff(old, old)) == ["time outside the kernels"]
    many = [Kernel(f"gemm_{letter}", 1, 1e-3) for letter in "abcdefghijkl"]
    more = [Kernel(each.name, 1, 1.1e-3) for each in many]
    assert blamed(diff(table(many, 1, "t"), table(more, 1, "t"))) == ["all kernels alike"]


def test_the_reason_names_what_costs_most_and_nothing_small():
    naive = "naive_conv_ab_packed_wrw_nhwc"
    before = profile((IGEMM, 61, 1.9), (ADD, 3, 10), (NVJET, 2, 4))
    after = profile(
        (naive, 61, 4), (ADD, 3, 10.01), (NVJET, 2, 4), ("Memcpy DtoD (Device -> Device)", 1, 0.3)
    )
    assert reason(diff(before, after)) == (
        "+2.41 ms in kernels: conv bwd-weights igemm_wrw_gtcx3_nhwc_fp16_256x128x32 → "
        "naive_conv_ab_packed_wrw_nhwc 1.9 ms → 4 ms, 61 calls; copy new Memcpy DtoD 300 us, 1 call"
    )


def test_a_slower_device_is_not_blamed_on_a_kernel():
    names = [f"kernel_{letter}" for letter in "abcdefghij"]
    before = profile(*[(name, 1, 1 + i) for i, name in enumerate(names)])
    after = profile(*[(name, 1, (1 + i) * 1.031) for i, name in enumerate(names)])
    assert reason(diff(before, after)) == (
        "all kernels are uniformly slower, +3.1%: the device, not a single kernel"
    )
    assert "in kernels" in reason(diff(profile(*_few(1.0)), profile(*_few(1.031))))


def _few(factor):
    return [(f"kernel_{letter}", 1, factor) for letter in "abc"]


def test_time_that_no_kernel_took_is_said_to_lie_between_them():
    same = profile((ADD, 3, 1), (NVJET, 1, 1))
    assert reason(diff(same, same), 2e-3) == (
        "2 ms of the extra 2 ms lie between the kernels (launches, waiting)"
    )
    some = diff(same, profile((ADD, 3, 1.4), (NVJET, 1, 1)))
    assert reason(some, 2e-3) == (
        "1.6 ms of the extra 2 ms lie between the kernels (launches, waiting); +400 us in "
        "kernels: elementwise vectorized_elementwise_kernel add fp16 1 ms → 1.4 ms, 3 calls"
    )
    assert reason(some, 0.5e-3).startswith("+400 us in kernels")
    faster = diff(same, profile((ADD, 3, 0.5), (NVJET, 1, 1)))
    assert reason(faster, 2e-3) == (
        "2 ms of the extra 2 ms lie between the kernels (launches, waiting)"
    )


def test_what_is_called_anew_is_the_cause_though_noise_elsewhere_outweighs_it():
    before = profile((ADD, 3, 2), (NVJET, 1, 40))
    noisy = diff(before, profile((ADD, 6, 4), (NVJET, 1, 37.5), ("tiny", 2, 0.001)))
    assert reason(noisy, 2.2e-3) == (
        "+2 ms in kernels that are new or called more often: vectorized_elementwise_kernel add "
        "fp16 2 ms → 4 ms, 3 → 6 calls"
    )
    assert blamed(noisy, 2.2e-3) == ["elementwise: vectorized_elementwise_kernel add fp16"]
    rarer = diff(before, profile((ADD, 2, 4.2), (NVJET, 1, 37.5)))
    assert reason(rarer, 2.2e-3).startswith("2.2 ms of the extra 2.2 ms lie between the kernels")
    moved = diff(before, profile((NVJET, 1, 40), (COPY, 3, 2)))
    assert reason(moved, 2.2e-3).startswith("2.2 ms of the extra 2.2 ms lie between the kernels")


def test_numbers_that_a_compiler_gives_anew_do_not_mix_kernels_up():
    before = profile(*[(f"triton_poi_fused_relu_{i}", 1 + i, 1.0) for i in range(4)])
    after = profile(*[(f"triton_poi_fused_relu_{i + 1}", 1 + i, 1.0 + i // 3) for i in range(4)])
    (change,) = diff(before, after).changes
    assert (change.before.calls, change.after.calls) == (10, 10)
    assert change.delta_s == pytest.approx(1e-3)


def test_tiles_that_take_calls_over_are_one_family():
    tile = NVJET.replace("256x128_64x4", "128x64_64x8")
    before = profile((NVJET, 9, 9), (tile, 1, 1))
    after = profile((NVJET.replace("256x128_64x4", "64x64_64x9"), 8, 9), (tile, 2, 2))
    (change,) = diff(before, after).changes
    assert [change.before.total_s, change.after.total_s] == pytest.approx([0.01, 0.011])
    assert change.name == f"{NVJET} → {NVJET.replace('256x128_64x4', '64x64_64x9')}"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (ADD, ADD.replace("std::array<char*, 3ul>", "at::detail::Array<char*, 3>")),
        (MEAN, MEAN.replace("unsigned int, 4>", "unsigned int, 4, 4>")),
        ("void addition_kernel<float>(float*, int)", "addition_kernel"),
    ],
)
def test_a_new_torch_or_another_profiler_writes_the_same_kernel_otherwise(old, new):
    (change,) = diff(profile((old, 1, 1)), profile((new, 1, 2))).changes
    assert (change.before.name, change.after.name) == (old, new)


def test_what_went_the_other_way_is_named_where_it_hides_most_of_it():
    found = diff(profile((ADD, 1, 2), (NVJET, 1, 4)), profile((ADD, 1, 4), (NVJET, 1, 2.1)))
    assert reason(found) == (
        "+100 us in kernels: elementwise vectorized_elementwise_kernel add fp16 2 ms → 4 ms, "
        f"1 call; partly offset by GEMM {NVJET} 4 ms → 2.1 ms, 1 call"
    )


names = st.sampled_from([ADD, CLAMP, MEAN, XMMA, IGEMM, TENSILE, NVJET, CUTLASS, "a", "b", REST])
tables = st.lists(st.tuples(names, st.integers(1, 9), st.floats(0, 9))).map(lambda k: profile(*k))


@given(tables, tables)
def test_no_time_is_lost_or_found_by_matching(before, after):
    found = diff(before, after)
    assert sum(c.delta_s for c in found.changes) == pytest.approx(found.delta_s, abs=1e-12)
    assert reason(found)


# --- tables --------------------------------------------------------------------------------


def test_a_table_is_of_one_step_the_longest_first_with_each_name_once():
    seen = [Kernel("b", 10, 0.5), Kernel("_Z1av", 5, 1.0), Kernel("b.kd", 10, 1.0)]
    assert table(seen, 5, "rocprofv3", busy_s=2.0) == KernelTable(
        "rocprofv3", 5, [Kernel("b", 4, 0.3), Kernel("a()", 1, 0.2)], 0.4
    )


def test_short_kernels_at_the_end_are_one_line():
    many = [Kernel(f"k{i:03}", 1, 1 + i / 1000) for i in range(MOST_KERNELS + 20)]
    found = tidy(KernelTable("torch.profiler", 1, many)).kernels
    assert len(found) == MOST_KERNELS + 1
    assert (found[-1].name, found[-1].calls) == (REST, 20)
    assert sum(k.total_s for k in found) == pytest.approx(sum(k.total_s for k in many))
    few = tidy(KernelTable("x", 1, [Kernel("long", 1, ENOUGH), Kernel("s", 1, 0.0001)])).kernels
    assert [k.name for k in few] == ["long", REST]


def test_a_kernel_that_takes_more_of_the_device_says_so():
    before, after = (
        KernelTable(
            "rocprofv3", 1, [Kernel("gemm", 1, seconds, {"scratch": scratch, "shared": 64})]
        )
        for seconds, scratch in ((1e-3, 0), (2e-3, 24))
    )
    assert reason(diff(before, after)).endswith("gemm 1 ms → 2 ms, 1 call, scratch 0 → 24")
