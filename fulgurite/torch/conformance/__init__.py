"""A judge: models and operators of torch through the backend, against eager torch.

`python -m fulgurite.torch.conformance [--suite ops|torchvision|timm|transformers] [--train]`.
Where float32 differs by more than a part in 10,000, float64 decides who is right.
"""
