"""The dtypes that the ops take."""

import torch

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
