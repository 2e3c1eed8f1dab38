"""The characters and places of the stories: names, kinds, helpers, homes, times of day and endings."""

#: The list is short, so that each name occurs often: a model of this size must learn each name separately to use it
#: consistently within a story.
GIRL_NAMES = ("Mia", "Lily", "Anna", "Rosa", "Clara", "Nora", "Ella", "Maya")
BOY_NAMES = ("Tom", "Max", "Ben", "Leo", "Sam", "Finn", "Oscar", "Noah")
#: Names for animals and all other heroes, grouped by pronoun.
SHE_NAMES = ("Fern", "Poppy", "Hazel", "Pearl")
HE_NAMES = ("Pip", "Bramble", "Rusty", "Biscuit")

ANIMALS = (
    "fox",
    "rabbit",
    "mouse",
    "bear",
    "hedgehog",
    "frog",
    "duck",
    "squirrel",
    "cat",
    "dog",
    "turtle",
    "badger",
    "otter",
    "owl",
    "hare",
    "donkey",
    "goose",
    "horse",
    "pig",
    "lion",
)
#: Kinds of heroes that are used less often.
WONDERS = (
    "robot",
    "dragon",
    "giant",
    "wizard",
    "knight",
    "pirate",
    "star",
    "king",
    "queen",
    "miller",
    "baker",
    "sailor",
)
HERO_ADJECTIVES = (
    "little",
    "small",
    "young",
    "brave",
    "curious",
    "kind",
    "quiet",
    "cheerful",
    "shy",
    "clever",
    "gentle",
    "busy",
    "sleepy",
    "merry",
    "tiny",
    "careful",
)

#: Helpers: the kind, as the story introduces it; the name; and the pronoun.
HELPERS = (
    ("old owl", "Barnaby", "he"),
    ("old turtle", "Matilda", "she"),
    ("wise crow", "Corvin", "he"),
    ("friendly badger", "Bertram", "he"),
    ("grey goose", "Agatha", "she"),
    ("old miller", "Gregor", "he"),
    ("kind baker", "Josephine", "she"),
    ("tall shepherd", "Alba", "she"),
    ("old fisherman", "Konrad", "he"),
    ("friendly beaver", "Baldwin", "he"),
    ("wise hare", "Theodora", "she"),
    ("old sailor", "Magnus", "he"),
    ("gentle bear", "Bartholomew", "he"),
    ("clever fox", "Vivian", "she"),
    ("white horse", "Silver", "she"),
    ("old gardener", "Winifred", "she"),
    ("patient snail", "Horatio", "he"),
    ("young shepherd", "Elias", "he"),
    ("friendly otter", "Ottilie", "she"),
    ("old donkey", "Balthasar", "he"),
    ("kind blacksmith", "Roland", "he"),
    ("clever mouse", "Penelope", "she"),
    ("quiet deer", "Estella", "she"),
    ("old toad", "Ferdinand", "he"),
)

OPENINGS = (
    "Once upon a time, there was {a_hero}.",
    "Once upon a time, there was {a_hero} who lived {home}.",
    "Once upon a time there was {a_hero}.",
    "Once upon a time, {home}, there lived {a_hero}.",
    "There once was {a_hero} who lived {home}.",
    "Long ago, {home}, there lived {a_hero}.",
    "{A_hero} lived {home}.",
    "In a land far away, there was {a_hero}.",
    "{Home}, there lived {a_hero}.",
    "Long, long ago, there was {a_hero} who lived {home}.",
    "This is the story of {a_hero}.",
    "Many years ago, {a_hero} lived {home}.",
    "One day, {a_hero} woke up very early.",
    "Not so long ago, there was {a_hero}.",
    "Far away, {home}, there lived {a_hero}.",
)
#: Share of stories whose opening is chosen only from those with "Once upon a time", because most prompts begin so. The
#: other stories use any opening.
ONCE_UPON_A_TIME_SHARE = 0.45

HOMES = (
    "in a small house by the river",
    "at the edge of a deep forest",
    "near an old mill",
    "under a big oak tree",
    "in a village between two hills",
    "on a farm by the lake",
    "in a little town by the sea",
    "at the foot of a mountain",
    "in a green valley",
    "on a small island",
    "beside a quiet pond",
    "in a warm house at the end of the road",
    "next to a field of sunflowers",
    "not far from a lighthouse",
    "behind the old garden wall",
    "by a narrow stream",
    "in a snowy valley",
    "in a cosy house on a hill",
)

#: Things that the hero likes. Some stories mention one before the plot begins.
HABITS = (
    "{He} liked to sing in the morning.",
    "Everybody there knew {him} and liked {him}.",
    "{He} loved to play outside in the sun.",
    "{He} liked to ask questions about everything.",
    "Every morning, {he} looked out of the window and smiled.",
    "{He} always said hello to the birds.",
    "{He} was small, but {he} had a big heart.",
    "{He} liked pancakes and long walks.",
    "{He} liked to watch the clouds.",
    "At night, {he} counted the stars until {he} fell asleep.",
    "{He} was always in a good mood.",
    "{He} loved stories more than anything else.",
)

TIMES = (
    "One sunny morning",
    "One rainy afternoon",
    "One cold winter day",
    "One warm summer evening",
    "One spring day",
    "One day",
    "One windy autumn day",
    "One morning",
    "One quiet afternoon",
    "One Sunday",
)

JOYS = (
    "{Hero} was so happy that {he} danced in a circle.",
    "{Hero} laughed with joy.",
    "{Hero} jumped up and down with joy.",
    "A big smile came to {hero}'s face.",
    "{Hero} had never been so happy.",
    "{Hero}'s heart felt light and warm.",
    "{Hero} was very proud.",
)
SORROWS = (
    "{Hero} felt so sad that {he} began to cry.",
    "{Hero} sat down on a stone and sighed.",
    "{Hero} was very sad.",
    "A tear ran down {hero}'s face.",
    "{Hero} did not know what to do.",
    "{Hero} felt small and alone.",
)
THANKS = (
    '"Thank you, {helper}!" said {hero}.',
    '"Thank you so much," said {hero}. "You are a true friend."',
    '"I will never forget this," said {hero}.',
    "{Hero} thanked {helper} with all {his} heart.",
)
ENDINGS = (
    "From that day on, {hero} and {helper} were the best of friends.",
    "That night, {hero} fell asleep with a smile.",
    "And they all lived happily ever after.",
    "{Hero} went home, had a warm supper and slept well.",
    "And when the moon came up, everyone was happy.",
    "Then they sat by the fire and told each other stories until it was late.",
    "And if you walk past there today, you can still hear them laugh.",
    "{Hero} never forgot that day.",
    "And so the day ended well for everyone.",
    "Then {hero} ran home and told everyone about it.",
)
