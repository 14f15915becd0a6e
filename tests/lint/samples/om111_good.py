import random


def jittered_backoff(number, run_id):
    generator = random.Random(f"{run_id}/{number}")
    return 2**number + generator.uniform(0, 1)


def shuffle_cards(cards):
    return random.sample(cards, len(cards))
