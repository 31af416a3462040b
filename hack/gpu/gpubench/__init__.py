"""What the GPU scripts share: servers, a closed-loop client, models without weights and with random ones, and reports.

Standard library only, but for `randommodels`, which needs the torch and safetensors that SGLang brings.
"""
