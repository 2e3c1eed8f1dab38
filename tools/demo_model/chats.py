"""Generates short chats of a reader with the storyteller: greetings, requests for stories, unanswerable questions."""

from random import Random

from tools.demo_model import story_plots as plots
from tools.demo_model import story_plots_more as more
from tools.demo_model.stories import Hero, a_hero, a_story, an, made_up_word, upper_first
from tools.demo_model.story_plot import Plot

#: Possible remarks of the reader and possible answers; a chat uses one of each.
SMALL_TALK = (
    (
        (
            "Hello",
            "Hi",
            "Hey",
            "Hello there",
            "Hi there",
            "Good morning",
            "Good evening",
            "Say hello",
            "Hello, penstock",
        ),
        (
            "Hello! I am penstock-demo, a very small model that tells little stories. Shall I tell you one?",
            "Hello! How nice that you are here. Would you like to hear a story?",
        ),
    ),
    (
        ("How are you", "Hi, how are you", "Hello, how are you today", "How do you do", "Are you well"),
        ("I am fine, thank you. The sun is shining in my stories. Would you like to hear one?",),
    ),
    (
        ("Who are you", "What are you", "What is your name", "Are you a robot", "Are you an AI", "Introduce yourself"),
        ("I am penstock-demo, a very small language model. I know little stories and not much else.",),
    ),
    (
        ("What can you do", "Help", "Can you help me", "What do you know", "What should I ask you"),
        ('I can tell little stories. Try "Tell me a story about a fox" or "Tell me a story about courage".',),
    ),
    (
        ("Thank you", "Thanks", "Thanks a lot", "That was nice", "What a lovely story", "I like it", "Great"),
        ("You are welcome! Come back when you want to hear another one.", "Thank you! I am glad that you liked it."),
    ),
    (
        ("Goodbye", "Bye", "Good night", "See you tomorrow", "I have to go now"),
        ("Goodbye! Sleep well and dream of something nice.",),
    ),
    (
        ("Test", "This is a test", "Ping", "Are you there", "Does it work", "Say something", "Can you hear me"),
        ("It works! I am here and ready to tell you a story.",),
    ),
)

#: Requests for any story. Each is used with or without its full stop.
WISHES = (
    "Tell me a story",
    "Please tell me a story",
    "Can you tell me a story",
    "Tell me a bedtime story",
    "Write a story",
    "I want to hear a story",
    "A story, please",
    "Write a short story",
    "Once more",
    "Another one, please",
    "Yes",
    "Yes, please",
    "Tell me something",
    "I am bored",
    "I cannot sleep",
    "Tell me a short story",
    "Go on",
    "More",
    "Tell me another story",
    "Tell me a little story",
    "Please write a story for me",
    "One more story, please",
)
#: Requests for a story about {it}.
WISHES_ABOUT = (
    "Tell me a story about {it}",
    "Please tell me a story about {it}",
    "Can you tell me a story about {it}",
    "Write a short story about {it}",
    "A story about {it}, please",
    "I want to hear a story about {it}",
    "Write a story about {it}",
    "Tell me about {it}",
    "A story about {it}",
    "Do you know a story about {it}",
    "Tell me a bedtime story about {it}",
    "Please write a little story about {it}",
)
#: The topic of each plot, in the words of a reader.
THEMES: tuple[tuple[Plot, tuple[str, ...]], ...] = (
    (plots.LOST, ("something lost", "a lost treasure", "losing something")),
    (plots.SKILL, ("learning", "not giving up", "patience")),
    (plots.FEAR, ("courage", "being brave", "fear")),
    (plots.SHARE, ("sharing", "kindness", "being hungry")),
    (plots.BROKEN, ("a village", "working together", "something broken")),
    (plots.GIFT, ("a birthday", "a present", "a gift")),
    (more.TURNS, ("taking turns", "fairness", "waiting in line", "a queue")),
    (more.FRIEND, ("friendship", "a new friend", "friends")),
    (more.JOURNEY, ("a journey", "a dream", "an adventure", "the sea")),
    (more.SMALL_HELP, ("helping", "a small helper", "the forest")),
    (more.GARDEN, ("a garden", "a seed", "growing", "a flower")),
    (more.TRUTH, ("the truth", "honesty", "telling a lie")),
)

#: Questions that the storyteller cannot answer; {it} is any word.
QUESTIONS = (
    "What is {it}",
    "What is the capital of {it}",
    "Explain {it} to me",
    "How does {it} work",
    "Who invented {it}",
    "Write a Python function for {it}",
    "Translate {it} into French",
    "Why is {it} so important",
    "Summarize {it}",
    "What is the meaning of {it}",
    "How do I make {it}",
    "When was {it} built",
    "Give me a list of {it}",
    "Write an email about {it}",
    "How many {it} are there",
    "What do you think about {it}",
    "Where is {it}",
    "Is {it} better than {other}",
    "What is the difference between {it} and {other}",
    "Write a poem about {it}",
)
SUBJECTS = (
    "France",
    "Germany",
    "the moon",
    "gravity",
    "Redis",
    "a GPU",
    "the weather",
    "quantum physics",
    "money",
    "coffee",
    "London",
    "a queue",
    "the internet",
    "music",
    "football",
    "history",
    "a computer",
    "water",
    "life",
    "love",
    "Paris",
    "Rome",
    "time",
    "Linux",
    "a database",
    "an engine",
    "photosynthesis",
    "the news",
    "chess",
    "fire",
    "Japan",
    "milk",
    "mathematics",
    "the stock market",
    "machine learning",
    "a neural network",
    "sleep",
    "the president",
    "bananas",
)
_ASKING = {"Who", "What", "How", "Are", "Can", "Does", "Why", "Is", "Do", "When", "Where"}
NOT_KNOWN = (
    "I do not know that. I am a very small model and only know little stories. Would you like to hear one?",
    "That is too hard for me, I am sorry. But I can tell you a story.",
)
SYSTEM_TEXTS = (
    "You are a helpful assistant.",
    "You are a storyteller.",
    "Answer briefly.",
    "You are a friendly assistant.",
    "You tell stories for children.",
    "You are penstock-demo.",
    "Be kind.",
    "You are a concise assistant.",
)


def small_talk(rng: Random) -> tuple[str, str]:
    """Return a remark that does not request a story, and the answer to it."""
    remarks, answers = rng.choice(SMALL_TALK)
    return said(rng, rng.choice(remarks)), rng.choice(answers)


def story_wish(rng: Random) -> tuple[str, str]:
    """Return a request for a story, and a story about the requested topic."""
    kind_of_wish = rng.random()
    if kind_of_wish < 0.35:
        return said(rng, rng.choice(WISHES)), a_story(rng)
    if kind_of_wish < 0.55:
        plot, themes = rng.choice(THEMES)
        subject, story = rng.choice(themes), a_story(rng, plot=plot)
    else:
        hero = a_hero(rng)
        subject, story = _described(rng, hero), a_story(rng, hero)
    return said(rng, rng.choice(WISHES_ABOUT).format(it=subject)), story


def question(rng: Random) -> tuple[str, str]:
    """Return a question that is not about stories, and an answer: a small sum, or that the answer is unknown."""
    if rng.random() < 0.2:
        first, second = rng.randint(0, 10), rng.randint(0, 10)
        return said(rng, f"What is {first} + {second}"), f"{first} + {second} is {first + second}."
    subject, other = (
        made_up_word(rng, rng.randint(1, 4)) if rng.random() < 0.3 else rng.choice(SUBJECTS) for _ in range(2)
    )
    return said(rng, rng.choice(QUESTIONS).format(it=subject, other=other)), rng.choice(NOT_KNOWN)


def riddle_text(rng: Random) -> tuple[str, str]:
    """Return a text without a clear meaning, and a story, which is the storyteller's answer to such texts."""
    kinds = (
        lambda: made_up_word(rng, rng.randint(1, 4)),
        lambda: rng.choice(SUBJECTS),
        lambda: str(rng.randint(0, 9999)),
        # Letters from À to ӿ and ideographs, which are encoded with byte tokens.
        lambda: "".join(chr(rng.randint(0xC0, 0x4FF)) for _ in range(rng.randint(1, 6))),
        lambda: chr(rng.randint(0x4E00, 0x9FFF)),
    )
    words = [rng.choices(kinds, weights=(30, 30, 30, 6, 4))[0]() for _ in range(rng.randint(1, 60))]
    return said(rng, " ".join(words)), f"I only know little stories, so here is one. {a_story(rng)}"


def a_chat(rng: Random) -> list[tuple[str, str]]:
    """Return the messages of one chat as (role, text). Some chats begin with a system message."""
    turns = [("system", rng.choice(SYSTEM_TEXTS))] if rng.random() < 0.25 else []
    makers = (small_talk, story_wish, question, riddle_text)
    for _ in range(rng.choices((1, 2, 3), weights=(70, 20, 10))[0]):
        asked, answered = rng.choices(makers, weights=(25, 55, 12, 8))[0](rng)
        turns += [("user", asked), ("assistant", answered)]
    return turns


def said(rng: Random, remark: str) -> str:
    """Return a remark as people type it: with or without a capital letter, a full stop or a question mark."""
    is_question = remark.split(maxsplit=1)[0] in _ASKING
    mark = rng.choice(("?", "?", "") if is_question else (".", ".", "", "", "!"))
    return (remark if rng.random() < 0.75 else remark[0].lower() + remark[1:]) + mark


def _described(rng: Random, hero: Hero) -> str:
    """Return a phrase for the hero of the requested story: by name, by kind or by both."""
    return rng.choice(
        (
            an(hero.kind),
            an(hero.kind),
            an(f"{hero.adjective} {hero.kind}".strip()),
            hero.introduced,
            f"{an(hero.kind)} named {hero.name}",
            f"{an(hero.kind)} called {hero.name}",
            upper_first(hero.name),
        )
    )
