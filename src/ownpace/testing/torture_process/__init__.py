"""Torture on real processes: nodes are killed and stopped, and links between hosts are cut, while a run trains.

python -m ownpace.testing.torture_process                     50 kills over all algorithms
python -m ownpace.testing.torture_process --seed 7            the run of this seed alone; its folder is kept
python -m ownpace.testing.torture_process --links             links between network namespaces, too (needs root)

blows      what happens to which node, and when: drawn from a seed
subject    the program that trains, in processes of its own, and writes down what it sees
watched    that program, followed from outside: what it has written, its processes, its end
hosts      network namespaces with a cable that can be pulled
strikes    blows carried out
verdict    what each blow did, and what must hold of a run
runner     runs, one after the other, and a table of them
"""
