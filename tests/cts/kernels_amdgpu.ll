; Kernels of the conformance suite for AMD GPUs; the same as kernels.c. Buffers first, then variables
; as 64-bit integers. One kernel asks for hidden arguments, one for constants behind relocations.
target triple = "amdgcn-amd-amdhsa"

@primes = internal addrspace(4) constant [8 x i32] [i32 2, i32 3, i32 5, i32 7, i32 11, i32 13, i32 17, i32 19]
@squares = internal addrspace(1) global [8 x i32] [i32 0, i32 1, i32 4, i32 9, i32 16, i32 25, i32 36, i32 49]

define internal i64 @item() #2 {
  %group = call i32 @llvm.amdgcn.workgroup.id.x()
  %first = mul i32 %group, 64
  %mine = call i32 @llvm.amdgcn.workitem.id.x()
  %narrow = add i32 %first, %mine
  %i = zext i32 %narrow to i64
  ret i64 %i
}

; out, x, y, n, bits of a: out[i] = a * x[i] + y[i]
define amdgpu_kernel void @saxpy(ptr addrspace(1) %out, ptr addrspace(1) %x, ptr addrspace(1) %y, i64 %n, i64 %a) #0 {
  %i = call i64 @item()
  %is_mine = icmp slt i64 %i, %n
  br i1 %is_mine, label %work, label %done
work:
  %bits = trunc i64 %a to i32
  %factor = bitcast i32 %bits to float
  %x_at = getelementptr float, ptr addrspace(1) %x, i64 %i
  %y_at = getelementptr float, ptr addrspace(1) %y, i64 %i
  %out_at = getelementptr float, ptr addrspace(1) %out, i64 %i
  %one = load float, ptr addrspace(1) %x_at
  %two = load float, ptr addrspace(1) %y_at
  %product = fmul float %factor, %one
  %sum = fadd float %product, %two
  store float %sum, ptr addrspace(1) %out_at
  br label %done
done:
  ret void
}

; out, n, start: out[i] = start + i
define amdgpu_kernel void @iota(ptr addrspace(1) %out, i64 %n, i64 %start) #0 {
  %i = call i64 @item()
  %is_mine = icmp slt i64 %i, %n
  br i1 %is_mine, label %work, label %done
work:
  %sum = add i64 %start, %i
  %out_at = getelementptr i64, ptr addrspace(1) %out, i64 %i
  store i64 %sum, ptr addrspace(1) %out_at
  br label %done
done:
  ret void
}

; out, in, n: out[i] = table[i % 2][in[i] % 8] + 1000
define amdgpu_kernel void @look_up(ptr addrspace(1) %out, ptr addrspace(1) %in, i64 %n) #0 {
  %i = call i64 @item()
  %is_mine = icmp slt i64 %i, %n
  br i1 %is_mine, label %work, label %done
work:
  %in_at = getelementptr i32, ptr addrspace(1) %in, i64 %i
  %number = load i32, ptr addrspace(1) %in_at
  %entry = and i32 %number, 7
  %bit = and i64 %i, 1
  %is_odd = icmp eq i64 %bit, 1
  br i1 %is_odd, label %odd, label %even
odd:
  %square_at = getelementptr i32, ptr addrspace(1) @squares, i32 %entry
  %square = load i32, ptr addrspace(1) %square_at
  br label %both
even:
  %prime_at = getelementptr i32, ptr addrspace(4) @primes, i32 %entry
  %prime = load i32, ptr addrspace(4) %prime_at
  br label %both
both:
  %found = phi i32 [ %square, %odd ], [ %prime, %even ]
  %sum = add i32 %found, 1000
  %out_at = getelementptr i32, ptr addrspace(1) %out, i64 %i
  store i32 %sum, ptr addrspace(1) %out_at
  br label %done
done:
  ret void
}

; out, in, n: out[i] = sin(in[i]): with t = in[i] - k * pi in [-pi/2, pi/2], the series of sin(t) to
; t^15, negated where k is odd; all in double.
define amdgpu_kernel void @sines(ptr addrspace(1) %out, ptr addrspace(1) %in, i64 %n) #0 {
  %i = call i64 @item()
  %is_mine = icmp slt i64 %i, %n
  br i1 %is_mine, label %work, label %done
work:
  %in_at = getelementptr float, ptr addrspace(1) %in, i64 %i
  %x = load float, ptr addrspace(1) %in_at
  %wide = fpext float %x to double
  %turns = fmul double %wide, 0x3FD45F306DC9C883
  %nearest = call double @llvm.rint.f64(double %turns)
  %k = fptosi double %nearest to i32
  %t = call double @llvm.fma.f64(double %nearest, double 0xC00921FB54442D18, double %wide)
  %t2 = fmul double %t, %t
  %s7 = call double @llvm.fma.f64(double 0xBD6AE7F3E733B81F, double %t2, double 0x3DE6124613A86D09)
  %s6 = call double @llvm.fma.f64(double %s7, double %t2, double 0xBE5AE64567F544E4)
  %s5 = call double @llvm.fma.f64(double %s6, double %t2, double 0x3EC71DE3A556C734)
  %s4 = call double @llvm.fma.f64(double %s5, double %t2, double 0xBF2A01A01A01A01A)
  %s3 = call double @llvm.fma.f64(double %s4, double %t2, double 0x3F81111111111111)
  %s2 = call double @llvm.fma.f64(double %s3, double %t2, double 0xBFC5555555555555)
  %s1 = call double @llvm.fma.f64(double %s2, double %t2, double 1.0)
  %sine = fmul double %s1, %t
  %negative = fneg double %sine
  %bit = and i32 %k, 1
  %is_odd = icmp eq i32 %bit, 1
  %signed = select i1 %is_odd, double %negative, double %sine
  %result = fptrunc double %signed to float
  %out_at = getelementptr float, ptr addrspace(1) %out, i64 %i
  store float %result, ptr addrspace(1) %out_at
  br label %done
done:
  ret void
}

; out, in, bytes: one block copies everything
define amdgpu_kernel void @move(ptr addrspace(1) %out, ptr addrspace(1) %in, i64 %bytes) #0 {
entry:
  %mine = call i32 @llvm.amdgcn.workitem.id.x()
  %first = zext i32 %mine to i64
  br label %next
next:
  %i = phi i64 [ %first, %entry ], [ %i_next, %work ]
  %is_mine = icmp slt i64 %i, %bytes
  br i1 %is_mine, label %work, label %done
work:
  %in_at = getelementptr i8, ptr addrspace(1) %in, i64 %i
  %out_at = getelementptr i8, ptr addrspace(1) %out, i64 %i
  %byte = load i8, ptr addrspace(1) %in_at
  store i8 %byte, ptr addrspace(1) %out_at
  %i_next = add i64 %i, 64
  br label %next
done:
  ret void
}

; x, n: x[i] += 1
define amdgpu_kernel void @increment(ptr addrspace(1) %x, i64 %n) #0 {
  %i = call i64 @item()
  %is_mine = icmp slt i64 %i, %n
  br i1 %is_mine, label %work, label %done
work:
  %at = getelementptr float, ptr addrspace(1) %x, i64 %i
  %before = load float, ptr addrspace(1) %at
  %after = fadd float %before, 1.0
  store float %after, ptr addrspace(1) %at
  br label %done
done:
  ret void
}

; out, in, by: out[i] = out[i] * 3 + in[i] + by, over the whole grid
define amdgpu_kernel void @fold(ptr addrspace(1) %out, ptr addrspace(1) %in, i64 %by) #0 {
  %i = call i64 @item()
  %out_at = getelementptr i64, ptr addrspace(1) %out, i64 %i
  %in_at = getelementptr i64, ptr addrspace(1) %in, i64 %i
  %one = load i64, ptr addrspace(1) %out_at
  %two = load i64, ptr addrspace(1) %in_at
  %tripled = mul i64 %one, 3
  %sum = add i64 %tripled, %two
  %all = add i64 %sum, %by
  store i64 %all, ptr addrspace(1) %out_at
  ret void
}

; counts: each block adds 1 to its own count; blocks of one thread. The grid's size is a hidden
; argument: numbers of blocks come first.
define amdgpu_kernel void @mark(ptr addrspace(1) %counts) #1 {
  %x = call i32 @llvm.amdgcn.workgroup.id.x()
  %y = call i32 @llvm.amdgcn.workgroup.id.y()
  %z = call i32 @llvm.amdgcn.workgroup.id.z()
  %hidden = call ptr addrspace(4) @llvm.amdgcn.implicitarg.ptr()
  %columns = load i32, ptr addrspace(4) %hidden
  %rows_at = getelementptr i32, ptr addrspace(4) %hidden, i64 1
  %rows = load i32, ptr addrspace(4) %rows_at
  %slices = mul i32 %z, %rows
  %row = add i32 %slices, %y
  %before_row = mul i32 %row, %columns
  %block = add i32 %before_row, %x
  %wide = zext i32 %block to i64
  %at = getelementptr i32, ptr addrspace(1) %counts, i64 %wide
  %count = load i32, ptr addrspace(1) %at
  %more = add i32 %count, 1
  store i32 %more, ptr addrspace(1) %at
  ret void
}

declare i32 @llvm.amdgcn.workgroup.id.x()
declare i32 @llvm.amdgcn.workgroup.id.y()
declare i32 @llvm.amdgcn.workgroup.id.z()
declare i32 @llvm.amdgcn.workitem.id.x()
declare ptr addrspace(4) @llvm.amdgcn.implicitarg.ptr()
declare double @llvm.fma.f64(double, double, double)
declare double @llvm.rint.f64(double)

attributes #0 = { nounwind "amdgpu-flat-work-group-size"="64,64" "amdgpu-no-dispatch-ptr" "amdgpu-no-queue-ptr" "amdgpu-no-dispatch-id" "amdgpu-no-implicitarg-ptr" }
attributes #1 = { nounwind "amdgpu-flat-work-group-size"="1,1" "amdgpu-no-dispatch-ptr" "amdgpu-no-queue-ptr" "amdgpu-no-dispatch-id" }
attributes #2 = { alwaysinline nounwind }

!llvm.module.flags = !{!0}
!0 = !{i32 1, !"amdhsa_code_object_version", i32 500}
