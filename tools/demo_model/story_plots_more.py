"""The second half of the plots: taking turns, new friends, journeys, small helpers, gardens and telling the truth."""

from tools.demo_model.story_plot import Plot, rows_of
from tools.demo_model.story_plots import BROKEN, FEAR, GIFT, LOST, SHARE, SKILL

TURNS = Plot(
    rows_of(
        "spot want",
        "at the mill | wanted to grind corn",
        "at the bakery | wanted the first warm bread",
        "at the well | wanted to fetch water",
        "at the swing in the meadow | wanted to swing",
        "at the ferry | wanted to cross the river",
        "at the ice cream cart | wanted ice cream",
        "in front of the library | wanted the new storybook",
    ),
    (
        ("{time}, there was a great crowd {spot}.", "{time}, {hero} came to a great crowd {spot}."),
        ("Everybody {want}, and everybody pushed.", "They all {want} at the same time."),
        (
            '"I was here first!" cried the goat. "No, I was!" cried the pig.',
            "The big ones pushed the small ones away.",
            "There was so much noise that nobody got anything at all.",
        ),
        ("In the corner stood {a_helper}, who had waited since sunrise.", "{A_helper} was pushed to the very end."),
        (
            '"Stop!" cried {hero}. "Let us take turns. One from each family, and then the next."',
            '{Hero} climbed on a box. "If we take turns," {he} said, "everyone will get something."',
        ),
        (
            "At first they grumbled, but then they made a line.",
            "The others thought about it, and then they nodded.",
        ),
        (
            "One after the other had a turn, and it went much faster than before.",
            "The big ones waited and the small ones waited, and nobody waited for long.",
        ),
        (
            '"Now it is your turn," said {hero} to {helper}.',
            "Soon it was {helper}'s turn, and {hhe} smiled.",
        ),
        ('"That was a good idea," said {helper}. {joy}', "{joy}"),
    ),
    ("When everyone takes turns, there is enough time for all.", "A fair line is shorter than a big crowd."),
)

FRIEND = Plot(
    rows_of(
        "game mishap",
        "played hide and seek | hid so well that {hhe} fell asleep in a barrel",
        "built a house of branches | put the door on the roof",
        "sailed paper boats | sailed {hhis} own hat by mistake",
        "rolled down the green hill | rolled right into a haystack",
        "made a snowman | gave it a carrot for an ear",
        "flew a kite | tied the kite to {hhis} own foot",
        "jumped over puddles | landed in the deepest one",
    ),
    (
        ("But {he} had nobody to play with.", "Often {he} wished for a friend."),
        (
            "{time}, {a_helper} moved into the house next door.",
            "{time}, {he} saw {a_helper} who was new there.",
        ),
        (
            "{Helper} was shy and did not say a word.",
            "{Helper} sat alone under a tree and looked at the ground.",
        ),
        (
            '"Hello," said {hero}. "My name is {hero}. Do you want to play with me?"',
            '{Hero} went over. "I am {hero}," {he} said. "What is your name?"',
        ),
        (
            '"My name is {helper}," said the new neighbour. "I would like to play."',
            '"I am {helper}," came the answer, very softly.',
        ),
        ("So they {game} until the sun went down.", "They {game} all afternoon."),
        ("{Helper} {mishap}, and both of them laughed.", "Once {helper} {mishap}. How they laughed!"),
        (
            '"Will you come again tomorrow?" asked {helper}. "Of course," said {hero}.',
            '"Today was the best day," said {helper}. "Tomorrow will be even better," said {hero}.',
        ),
        ("{joy}", "Now neither of them was alone any more."),
    ),
    ("A friend often begins with a small hello.", "It only takes one word to make a friend."),
)

JOURNEY = Plot(
    rows_of(
        "goal path sight",
        "see the sea | over the hills and through the sand | The sea was as wide as the sky",
        "climb the highest mountain | up the steep path | The whole world lay below",
        "find the end of the river | along the river, day after day | The river ran into a silver lake",
        "find where the rainbow ends | across the wet fields | The rainbow ended in a meadow full of flowers",
        "see the stars up close | up to the old tower on the hill | The stars were as bright as lamps",
        "hear the great waterfall | through the deep forest | The water fell like a curtain of glass",
        "visit the moon | to the place where the moon goes down | The moon lay on the lake like a silver plate",
        "see the big city | along the dusty road | A thousand lights were shining in the city",
    ),
    (
        ("{He} had always wanted to {goal}.", "{His} dream was to {goal}."),
        (
            "{time}, {hero} packed some bread and a blanket and set out.",
            "{time}, {he} put on {his} hat and went on {his} way.",
        ),
        ("{He} walked {path}.", "The way went {path}."),
        (
            "Soon {he} was tired, and it was still far.",
            "In the evening, it began to rain, and {hero} was cold.",
        ),
        (
            'Then {he} met {a_helper}. "Where are you going?" asked {helper}.',
            'At a crossroads sat {a_helper}. "Are you lost?" asked {helper}.',
        ),
        (
            '"I want to {goal}," said {hero}. "So do I," said {helper}. "Let us go together."',
            '"I want to {goal}," said {hero}. "Then rest here tonight, and I will show you the way," said {helper}.',
        ),
        (
            "The next morning, they went on side by side, and the way did not seem long any more.",
            "They walked and talked, and before they knew it, they were there.",
        ),
        ("{sight}.", "{sight}. For a long time, neither of them said a word."),
        ("{joy}", '"It is even more beautiful than I thought," said {hero}.'),
    ),
    ("Every long way begins with a small step.", "A way is only half as long when two walk it."),
)

SMALL_HELP = Plot(
    rows_of(
        "trap free later",
        "caught in a net | bit through the ropes | warned {him} of the flood and carried {him} up the hill",
        "stuck in the mud | dug the mud away with a spoon | shared a warm bed with {him} in the coldest night",
        "hurt by a thorn | pulled out the thorn | brought {him} a basket of berries every Sunday",
        "trapped under a branch | rolled the branch away with a stick | chased the hungry wolf away from {him}",
        "stuck in a hollow tree | pushed from below with all {his} might | lifted {him} over the wild river",
        "lost in the fog | rang a little bell to show the way | found {him} when {he} was lost, too",
    ),
    (
        (
            "{time}, {hero} heard someone cry in the forest.",
            '{time}, {hero} heard a voice. "Help! Please help me!"',
        ),
        ("It was {a_helper}, {trap}.", "{He} ran there and found {a_helper}, {trap}."),
        (
            '"Nobody can help me," said {helper}.',
            '"Please do not be afraid of me," said {helper}.',
        ),
        ('"I can try," said {hero}.', '"Hold still," said {hero}. "I will help you."'),
        ("{Hero} {free}.", "It took a long time, but {hero} {free}."),
        ('At last {helper} was free. "You have saved me," {hhe} said.', "Then {helper} was free again."),
        (
            "{Helper} did not forget it. When autumn came, {hhe} {later}.",
            "And one day, {helper} {later}.",
        ),
        ("{thanks}", "{joy}"),
    ),
    ("Nobody is too small to help.", "A small friend can be a great help."),
)

GARDEN = Plot(
    rows_of(
        "seed plant harvest",
        "a tiny seed | a rose bush | the garden was full of red roses",
        "a round brown bean | a beanstalk | there were beans enough for the whole village",
        "an apple seed | an apple tree | the tree was full of sweet apples",
        "a sunflower seed | a sunflower | the flower was as tall as the house",
        "a pumpkin seed | a pumpkin | the pumpkin was so big that they had to roll it home",
        "a strange blue seed | a blue flower | the flower rang like a bell in the wind",
    ),
    (
        (
            "{time}, {hero} found {seed} on the road and showed it to {a_helper}.",
            "{time}, {a_helper} gave {hero} {seed}.",
        ),
        ("{He} put it into the earth and gave it water.", "{He} dug a small hole behind the house and put it in."),
        (
            "{He} waited one day and two days, but nothing happened.",
            "Every morning {he} looked, but there was only earth.",
        ),
        ('"Why does it not grow?" {he} asked {helper}.', '"Maybe it is asleep," said {hero} to {helper}.'),
        (
            '"It is working under the ground, where you cannot see it," said {helper}.',
            '"Give it water and sun and time," said {helper}. "And a song, if you like."',
        ),
        ("So {hero} gave it water and sang to it every day.", "So {hero} waited, and it was not easy."),
        (
            "Then one morning, there was a small green leaf. Day after day, it grew into {plant}.",
            "After the rain, a green tip came out of the earth. It grew and grew and became {plant}.",
        ),
        ("When summer came, {harvest}.", "In the end, {harvest}."),
        ("{joy}", '"You see," said {helper}. "It only needed time."'),
    ),
    ("Some things grow best when you wait for them.", "Whoever waits and cares will see it grow."),
)

TRUTH = Plot(
    rows_of(
        "object doing",
        "blue jug | jumped on the table",
        "big window | threw a ball in the yard",
        "old clock | tried to see how it worked",
        "glass bowl | danced in the kitchen",
        "flower pot | ran through the garden",
        "painted plate | played pirates in the house",
    ),
    (
        ("{time}, {hero} was at the house of {a_helper}.", "{time}, {hero} went to visit {a_helper}."),
        (
            "{He} {doing}, and crash! The {object} broke.",
            "{He} {doing}, although {he} knew better. The {object} broke.",
        ),
        ("Nobody had seen it. {Hero} hid under the stairs.", "{Hero} quickly hid the pieces."),
        (
            '"Who broke my {object}?" asked {helper}. {Hero} said nothing.',
            '"It was the wind," said {hero}, but {his} face was red.',
        ),
        ("All night, {he} could not sleep.", "At supper, {he} could not eat a single bite.", "{sorrow}"),
        (
            'In the morning, {he} went to {helper}. "It was me," {he} said. "I am sorry."',
            '"I have to tell you something," {he} said at last. "I broke the {object}. I am very sorry."',
        ),
        (
            '"It is only a {object}," said {helper}. "I am glad that you told me the truth."',
            '{Helper} was quiet for a while. Then {hhe} smiled. "Thank you for telling me," {hhe} said.',
        ),
        ("Together they glued the pieces.", "Then {hero} helped {hhim} to clean it all up."),
        ("{Hero}'s heart was light again.", "{joy}"),
    ),
    ("The truth is hard to say, but good to have said.", "It is better to tell the truth."),
)

PLOTS = (LOST, SKILL, FEAR, SHARE, BROKEN, GIFT, TURNS, FRIEND, JOURNEY, SMALL_HELP, GARDEN, TRUTH)
