"""The executable specification of every algorithm in NumPy: losses with gradients by hand, in float32 or float64.

The frameworks are compared with it; its gradients are checked by finite differences in the tests.
"""
