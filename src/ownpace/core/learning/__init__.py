"""What engines learn with; algorithms never see it.

task             a model, data and a loss; defaults: how to learn it where nothing else is said
samples          data that can be counted and picked from: of torch's data sets (dataset_samples), changed at random for
                 training (augmented), loaded a batch ahead (drawn_ahead)
sampling         which samples a worker gets next: orders of them, and who took which places (claims)
layout           where each layer is in one flat vector of all parameters
flat             a model whose parameters and gradient are such vectors (backward, cuda_graphs)
layer_work       how a gradient's time divides among layers; layer_needs: which ones a forward pass needs next
optimizer        any torch optimizer as a function of parameters, state and gradient: its state by layers
                 (optimizer_state), steps in parts (range_steps) or in one kernel (fused_sgd), its settings
                 (group_settings)
schedule         the learning rate, indexed by samples
seeds            one seed for each purpose
norms            the length of a vector, with the same bits on different machines
state_file       a state (plain_state) as one file, which is whole or refused
out_of_memory    one line that says what memory did not suffice for
"""
