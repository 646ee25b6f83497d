"""What engines learn with; algorithms never see it.

task         a model, data and a loss
flat         a model as one flat vector of parameters
cuda_graphs  gradients that are recorded on a GPU once and replayed
optimizer    any torch optimizer as a function of parameters, state and gradient
schedule     the learning rate, indexed by samples
sampling     which samples a worker gets next
seeds        one seed for each purpose
"""
