; Kernels of the loader's tests. Objects beside this file are made from it:
;   llc-19 -mcpu=CHIP -filetype=obj kernels.ll -o CHIP.o
;   llc-19 -mcpu=gfx1100 --amdhsa-code-object-version=4 -filetype=obj kernels.ll -o x.o &&
;     ld.lld -shared x.o -o gfx1100.so
target triple = "amdgcn-amd-amdhsa"

@table = internal addrspace(4) constant [4 x i32] [i32 1, i32 2, i32 3, i32 4]
@pointer = internal addrspace(4) constant ptr addrspace(4) @table
@lds = internal addrspace(3) global [1024 x i8] undef, align 16

define amdgpu_kernel void @lookup(ptr addrspace(1) %out, i64 %n) #0 {
  %i = call i32 @llvm.amdgcn.workitem.id.x()
  %g = call i32 @llvm.amdgcn.workgroup.id.x()
  %k = and i32 %i, 3
  %t = load volatile ptr addrspace(4), ptr addrspace(4) @pointer
  %p = getelementptr [4 x i32], ptr addrspace(4) %t, i32 0, i32 %k
  %v = load i32, ptr addrspace(4) %p
  %l = getelementptr [1024 x i8], ptr addrspace(3) @lds, i32 0, i32 %i
  store volatile i8 3, ptr addrspace(3) %l
  %q = getelementptr i32, ptr addrspace(1) %out, i32 %g
  store i32 %v, ptr addrspace(1) %q
  ret void
}

define amdgpu_kernel void @stack(ptr addrspace(1) %out, i64 %i) #1 {
  %s = alloca [500 x i32], addrspace(5)
  %k = trunc i64 %i to i32
  %p = getelementptr [500 x i32], ptr addrspace(5) %s, i32 0, i32 %k
  store volatile i32 5, ptr addrspace(5) %p
  %q = getelementptr [500 x i32], ptr addrspace(5) %s, i32 0, i32 7
  %v = load volatile i32, ptr addrspace(5) %q
  store i32 %v, ptr addrspace(1) %out
  ret void
}

; out[i] = n + 3 * i through LDS, one element a thread, blocks of 64.
@turn = internal addrspace(3) global [64 x i64] undef, align 16
define amdgpu_kernel void @scale(ptr addrspace(1) %out, i64 %n) #0 {
  %i = call i32 @llvm.amdgcn.workitem.id.x()
  %g = call i32 @llvm.amdgcn.workgroup.id.x()
  %b = mul i32 %g, 64
  %k = add i32 %b, %i
  %k64 = zext i32 %k to i64
  %t = mul i64 %k64, 3
  %v = add i64 %t, %n
  %l = getelementptr [64 x i64], ptr addrspace(3) @turn, i32 0, i32 %i
  store i64 %v, ptr addrspace(3) %l
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  %back = sub i32 63, %i
  %m = getelementptr [64 x i64], ptr addrspace(3) @turn, i32 0, i32 %back
  %w = load i64, ptr addrspace(3) %m
  %at = add i32 %b, %back
  %at64 = zext i32 %at to i64
  %q = getelementptr i64, ptr addrspace(1) %out, i64 %at64
  store i64 %w, ptr addrspace(1) %q
  ret void
}

declare void @llvm.amdgcn.s.barrier()
declare i32 @llvm.amdgcn.workitem.id.x()
declare i32 @llvm.amdgcn.workgroup.id.x()
; The first kernel takes nothing but its arguments; the second all that compilers ask for by default.
attributes #0 = { "amdgpu-flat-work-group-size"="1,256" "amdgpu-no-dispatch-ptr" "amdgpu-no-queue-ptr" "amdgpu-no-dispatch-id" "amdgpu-no-implicitarg-ptr" }
attributes #1 = { "amdgpu-flat-work-group-size"="1,256" }
