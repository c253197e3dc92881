; Kernels that go wrong, and one that does not. Objects beside this file are made from it:
;   llc-19 -mcpu=CHIP -filetype=obj faults.ll -o CHIP.o
target triple = "amdgcn-amd-amdhsa"

@room = internal addrspace(3) global [16 x i64] undef, align 16

; at[i] = 8 i + 7 for the 32 threads of a block.
define amdgpu_kernel void @numbers(ptr addrspace(1) %at) #0 {
  %i = call i32 @llvm.amdgcn.workitem.id.x()
  %v = mul i32 %i, 8
  %w = add i32 %v, 7
  %x = zext i32 %w to i64
  %p = getelementptr i64, ptr addrspace(1) %at, i32 %i
  store i64 %x, ptr addrspace(1) %p
  ret void
}

define amdgpu_kernel void @reader(ptr addrspace(1) %at) #0 {
  %v = load volatile i64, ptr addrspace(1) %at
  ret void
}

define amdgpu_kernel void @writer(ptr addrspace(1) %at) #0 {
  store volatile i64 7, ptr addrspace(1) %at
  ret void
}

define amdgpu_kernel void @adder(ptr addrspace(1) %at) #0 {
  %v = atomicrmw add ptr addrspace(1) %at, i64 1 syncscope("agent") monotonic
  ret void
}

define amdgpu_kernel void @jumper(ptr addrspace(1) %at) #0 {
  call void asm sideeffect "s_mov_b64 s[0:1], 0x7ead0000\0As_setpc_b64 s[0:1]", "~{s0},~{s1}"()
  ret void
}

define amdgpu_kernel void @spinner(ptr addrspace(1) %at) #0 {
  br label %again
again:
  call void asm sideeffect "s_nop 0", ""()
  br label %again
}

define amdgpu_kernel void @trapper(ptr addrspace(1) %at) #0 {
  call void asm sideeffect "s_trap 2", ""()
  ret void
}

define amdgpu_kernel void @nonsense(ptr addrspace(1) %at) #0 {
  call void asm sideeffect ".long 0xffffffff", ""()
  ret void
}

; Reads 4 bytes that no alignment holds, as an atomic that wants it.
define amdgpu_kernel void @crooked(ptr addrspace(1) %at) #0 {
  %p = getelementptr i8, ptr addrspace(1) %at, i64 2
  %v = atomicrmw add ptr addrspace(1) %p, i32 1 syncscope("agent") monotonic
  ret void
}

; Writes far behind its 128 bytes of LDS.
define amdgpu_kernel void @sharer(ptr addrspace(1) %at) #0 {
  %p = getelementptr i8, ptr addrspace(3) @room, i32 60000
  store volatile i64 7, ptr addrspace(3) %p
  ret void
}

; 1,000 bytes of stack, so that the kernel needs scratch; at[0] = at[0] * 3 + 1 through it.
define amdgpu_kernel void @step(ptr addrspace(1) %at) #0 {
  %s = alloca [125 x i64], addrspace(5)
  %v = load i64, ptr addrspace(1) %at
  %k = trunc i64 %v to i32
  %j = and i32 %k, 63
  %p = getelementptr [125 x i64], ptr addrspace(5) %s, i32 0, i32 %j
  store volatile i64 %v, ptr addrspace(5) %p
  %w = load volatile i64, ptr addrspace(5) %p
  %t = mul i64 %w, 3
  %u = add i64 %t, 1
  store i64 %u, ptr addrspace(1) %at
  ret void
}

declare i32 @llvm.amdgcn.workitem.id.x()
attributes #0 = { "amdgpu-flat-work-group-size"="1,256" "amdgpu-no-dispatch-ptr" "amdgpu-no-queue-ptr" "amdgpu-no-dispatch-id" "amdgpu-no-implicitarg-ptr" }
