"""Use cases of a round: snapshot, decision, guarded apply, delivery."""
