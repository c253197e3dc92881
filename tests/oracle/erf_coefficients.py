# Coefficients of tensor/ops_math.cpp, erf: exp(x²)·erfc(x) as a polynomial in s = (x - 2) / (x + 2)
# on [1, limit], by interpolation at Chebyshev nodes in 60 digits. Prints the largest error.
from mpmath import mp, mpf, erfc, exp, cos, pi, matrix, lu_solve
mp.dps = 60
def fit(limit, degree):
    f = lambda s: (lambda x: exp(x*x)*erfc(x))(2*(1+s)/(1-s))
    a, b = mpf(1-2)/(1+2), mpf(limit-2)/(limit+2)
    nodes = [(a+b)/2 + (b-a)/2*cos((2*k+1)*pi/(2*degree+2)) for k in range(degree+1)]
    A = matrix(degree+1, degree+1); y = matrix(degree+1, 1)
    for i, s in enumerate(nodes):
        y[i] = f(s)
        for j in range(degree+1): A[i, j] = s**j
    c = lu_solve(A, y)
    worst = max(abs(sum(c[j]*s**j for j in range(degree+1))-f(s))/1 for s in [a+(b-a)*mpf(i)/1000 for i in range(1001)])
    return [float(v) for v in c], float(worst)
for limit, degree in ((4, 6), (6, 15)):
    c, w = fit(limit, degree)
    print(limit, degree, w); print(", ".join("%.17g" % v for v in c))
