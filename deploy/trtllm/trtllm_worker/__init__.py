"""An OpenAI-compatible worker over TensorRT-LLM's LLM API that lets its caller choose the attention-DP rank."""
