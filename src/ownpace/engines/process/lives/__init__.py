"""How nodes live from generation to generation.

life                   what all of them do; exchange: what they give each other in between
helper_life            of a server or a communicator
worker_life            of a worker of a complete run; worker_data: its samples; worker_parts
loop_life              of a rank of a user's script; loop_parts, loop_data, user_terms
sharing                what workers have in common besides the parameters that are trained
"""
