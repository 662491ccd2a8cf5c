"""Settings of a training that takes seconds on a CPU."""

max_iters, eval_interval = 160, 10
gradient_accumulation_steps, batch_size, block_size = 4, 2, 32
backend, device = "gloo", "cpu"
