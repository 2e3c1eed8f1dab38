"""The first half of the plots: losing, learning, fearing, sharing, breaking or giving something."""

from tools.demo_model.story_plot import Plot, rows_of

LOST = Plot(
    rows_of(
        "thing where",
        "red kite | high up in a pear tree",
        "silver bell | under a pile of leaves",
        "blue scarf | on a branch of the birch tree",
        "little drum | behind the barn",
        "wooden boat | between the reeds",
        "golden button | between two stones",
        "green hat | on the head of the scarecrow",
        "storybook | under the old bench",
        "lantern | inside a hollow log",
        "silver key | at the bottom of a bucket",
        "music box | behind the flour sacks",
        "yellow ball | in the middle of the pond",
    ),
    (
        (
            "{He} had a {thing} that {he} loved more than anything.",
            "{His} greatest treasure was a {thing}.",
            "Every day, {he} played with {his} {thing}.",
        ),
        (
            "{time}, the {thing} was gone.",
            "But {time_low}, {he} could not find the {thing}.",
            "{time}, {hero} lost the {thing} on the way home.",
        ),
        (
            "{Hero} looked under the bed and behind the door, but it was not there.",
            "{Hero} looked here and there, but the {thing} was nowhere.",
            "{He} looked all around the garden, but {he} did not find it.",
        ),
        ("{sorrow}",),
        (
            'Then {a_helper} came by. "Why are you so sad?" asked {helper}.',
            'Along came {a_helper}. "What is the matter?" asked {helper}.',
        ),
        (
            '"I have lost my {thing}," said {hero}. "Do not worry," said {helper}. "We will look for it together."',
            '"My {thing} is gone," said {hero}. "Then let us look for it together," said {helper}.',
        ),
        (
            "They looked by the river and they looked in the meadow.",
            "They looked for a long time.",
            "They asked the ducks, they asked the bees, and they looked behind every tree.",
        ),
        (
            "At last, {helper} saw something {where}. It was the {thing}!",
            "Suddenly {hero} saw it. The {thing} was {where}!",
            'And there, {where}, was the {thing}. "Look!" cried {helper}.',
        ),
        ("{joy} {thanks}", "{thanks} {joy}", "{joy}"),
    ),
    ("What is lost is found more easily by two.", "{Hero} learned that it is good to ask for help."),
)

SKILL = Plot(
    rows_of(
        "skill fail tip success",
        "fly a kite | the kite fell into the grass | Run into the wind and hold tight | the kite rose above the trees",
        "swim | {he} swallowed a lot of water | Breathe slowly and kick with your legs | {he} swam across the pond",
        "bake bread | the bread was hard as a stone | Be patient and let the dough rest | the bread was soft and warm",
        "whistle | no sound came out | Make your lips round and blow softly | a clear note rang through the air",
        "skate on the ice | {he} fell on {his} nose | Look ahead and bend your knees | {he} flew over the ice",
        "climb the tall oak | {he} slid down again | Take one branch at a time | {he} sat at the very top",
        "row a boat | the boat went round in circles | Pull with both sides at once | the boat ran straight ahead",
        "dance | {he} stumbled over a chair | Listen to the music first | {he} danced like a leaf in the wind",
        "paint a picture | the colours ran into one another | Wait until one colour is dry | the picture was lovely",
        "play the flute | it sounded like a sick goose | Play slowly, note after note | a sweet song filled the air",
        "read | the letters looked like ants | Say each letter aloud and then the word | {he} read a whole page",
        "ride a bicycle | {he} rolled into a bush | Do not look at your feet | {he} rode all the way down the road",
        "tell a story | {he} forgot how it began | Begin with once upon a time | everyone listened until the end",
    ),
    (
        (
            "More than anything, {he} wanted to {skill}.",
            "{He} had one great wish. {He} wanted to {skill}.",
            "{time}, {hero} wanted to learn to {skill}.",
        ),
        (
            "{He} tried it all day, but {fail}.",
            "So {he} tried it, but {fail}.",
            "The first time {he} tried, {fail}. The second time was no better.",
        ),
        (
            '"I will never learn it," said {hero}.',
            "Some of the others laughed. {sorrow}",
            "{sorrow}",
        ),
        (
            'But {a_helper} had seen it all. "Nobody can do everything at once," said {helper}.',
            'Then {a_helper} came along. "I could not do it either, when I was young," said {helper}.',
            '"May I show you something?" asked {a_helper}.',
        ),
        (
            '"{tip}," said {helper}.',
            '{Helper} smiled. "{tip}," {hhe} said. "Then try again."',
            '"I will tell you a secret," said {helper}. "{tip}."',
        ),
        (
            "{Hero} tried again the next day, and the day after that.",
            "{Hero} took a deep breath and tried again.",
            "{Hero} practised every day for a week.",
        ),
        ("And at last, {success}!", "And this time, {success}!", "Then it happened: {success}!"),
        ('"I can do it!" cried {hero}. {joy}', "{joy} {thanks}", "{joy}"),
    ),
    ("If you do not give up, you can learn almost anything.", "Good things take time, and that is all right."),
)

FEAR = Plot(
    rows_of(
        "fear moment deed",
        "the dark | the lamp went out | walked through the dark house and lit the lamp again",
        "thunder | a storm came over the hills | stood at the window and counted the flashes",
        "the deep water | a hat fell into the lake | waded into the lake and brought the hat back",
        "the old cellar | a kitten cried in the cellar | went down the steps and carried the kitten up",
        "high places | a young bird sat alone on the roof | climbed up the ladder and helped the bird down",
        "the big grey dog | the big grey dog got stuck in the fence | went to the fence and set the dog free",
        "strangers | a lost traveller knocked at the door | opened the door and gave the traveller some tea",
        "the narrow bridge | a friend called from the other side | walked over the bridge, step by step",
    ),
    (
        (
            "{He} was afraid of only one thing: {fear}.",
            "{He} was not afraid of much, but {he} was afraid of {fear}.",
            "But {he} had a secret. {He} was afraid of {fear}.",
        ),
        ("{time}, {moment}.", "{time}, something happened: {moment}."),
        ("{Hero} trembled from head to toe.", "{Hero}'s heart beat fast.", "{Hero} wanted to run away and hide."),
        (
            '"I am too afraid," {he} whispered to {a_helper} who lived next door.',
            '{A_helper} sat down beside {him}. "I cannot do it," whispered {hero}.',
        ),
        (
            '"Being brave does not mean that you are not afraid," said {helper}. "It means that you go all the same."',
            '"Everyone is afraid of something," said {helper}. "Take my hand and count to three."',
            '"I am afraid sometimes, too," said {helper}. "Then I sing a little song."',
        ),
        (
            "{Hero} thought about that for a while.",
            "{Hero} closed {his} eyes and counted to three.",
            "{Hero} hummed a little song.",
        ),
        ("Then {he} {deed}.", "And then, very slowly, {he} {deed}."),
        (
            '"You did it!" cried {helper}. {joy}',
            '{joy} "It was not so bad after all," {he} said.',
            '"That was very brave," said {helper}.',
        ),
    ),
    ("From then on, {hero} was not afraid of {fear} any more.", "Even the smallest can be brave."),
)

SHARE = Plot(
    rows_of(
        "food danger rescue",
        "a warm loaf of bread | lost {his} way in the snow | led {him} safely home",
        "a basket of red apples | fell into the cold stream | pulled {him} out of the water",
        "a honey cake | got caught in a thorn bush | opened the thorns with great care",
        "a pot of soup | was caught in a terrible storm | gave {him} a dry place by the fire",
        "a bag of nuts | could not cross the wide river | carried {him} to the other side",
        "a plum pie | got lost in the dark forest | showed {him} the way with a lantern",
        "a bowl of berries | slipped on the steep path | held {him} tight and pulled {him} up",
        "a big pancake | could not push {his} cart up the hill | pushed the cart all the way up",
    ),
    (
        ("{time}, {hero} was carrying {food}.", "{time}, {hero} had {food} for lunch."),
        (
            "On the way, {he} met {a_helper}.",
            "Under a tree sat {a_helper}.",
            "By the side of the road stood {a_helper}.",
        ),
        (
            '"I have not eaten since yesterday," said {helper} in a low voice.',
            '"That smells so good," said {helper}, "and I am so hungry."',
        ),
        (
            "{Hero} was hungry, too, but {he} gave {helper} half of it.",
            '"Then let us share," said {hero}, and gave {helper} the bigger half.',
            '"There is enough for two," said {hero}, and they ate together.',
        ),
        ('"Thank you," said {helper}. "I will not forget it."', "{Helper} ate it all and smiled."),
        (
            "Some days later, {hero} {danger}.",
            "When winter came, {hero} {danger}.",
            "Not long after that, {hero} {danger}.",
        ),
        ('"Help!" {he} called, but nobody seemed to hear {him}.', "{sorrow}"),
        (
            "But {helper} heard {him}, came running and {rescue}.",
            "Then {helper} came and {rescue}.",
            "Who should come along but {helper}? {HHe} {rescue}.",
        ),
        (
            '"You shared with me," said {helper}. "Now it is my turn."',
            "{thanks}",
        ),
    ),
    ("A kind deed always finds its way back.", "What you share comes back to you."),
)

BROKEN = Plot(
    rows_of(
        "object trouble cause repair",
        "the mill wheel | there was no flour for bread | a branch was stuck between the blades | pulled the branch out",
        "the bridge | nobody could get to the market | three boards were gone | laid three new boards",
        "the clock in the tower | everyone came late | a bird had built its nest in it | moved the nest to a tree",
        "the well | there was no water to drink | a big stone had fallen in | lifted the stone with a rope",
        "the lamp in the lighthouse | the ships could not find the harbour | the glass was black | cleaned the glass",
        "the gate of the canal | the water ran over the fields | the hinge was full of rust | oiled the hinge",
        "the big bell | nobody knew when school began | the rope was torn | tied a new rope",
        "the oven in the bakery | there was no bread in town | the chimney was full of leaves | swept the chimney",
    ),
    (
        ("{time}, {object} stopped working.", "{time}, something was wrong with {object}."),
        ("Soon {trouble}.", "So {trouble}, and everyone was worried."),
        (
            "The others shouted at one another, but nobody did anything.",
            '"Whose fault is it?" they all asked, but nobody knew.',
            "The strongest pushed and pulled, but it was no use.",
        ),
        (
            '"Let us look at it first," said {hero}.',
            '{Hero} had an idea. "Has anyone looked inside?" {he} asked.',
        ),
        (
            "So {hero} went there with {a_helper}.",
            "{Hero} asked {a_helper} to come with {him}.",
        ),
        ("They looked closely, and then they saw it: {cause}.", '"Look," said {helper}. Indeed, {cause}.'),
        (
            "Together they {repair}.",
            "It took all day, but in the end they {repair}.",
            "{Hero} held the ladder, and together they {repair}.",
        ),
        ("After that, {object} worked as well as new.", "And then {object} worked again!"),
        ("Everyone cheered. {joy}", '"Well done!" cried the whole village.', "{joy}"),
    ),
    ("To look closely is better than to shout.", "Even big troubles may have a small cause."),
)

GIFT = Plot(
    rows_of(
        "present fail simple",
        "a big cake | the cake burned in the oven | drew a card with a heart on it",
        "a golden ring | it cost far too much | made a ring of daisies",
        "a new coat | the cloth was torn | knitted a pair of warm socks",
        "a bunch of roses | the wind had blown the petals away | picked a small bunch of clover",
        "a wooden chair | one leg was too short | carved a little spoon",
        "a song | {he} forgot the words | whistled the tune instead",
    ),
    (
        ("{Hero}'s best friend was {a_helper}.", "{Hero} had a very good friend, {a_helper}."),
        ("{time}, it was {helper}'s birthday.", "And {time_low}, {helper} had {hhis} birthday."),
        ("{Hero} wanted to give {hhim} {present}.", '"I will give {hhim} {present}," thought {hero}.'),
        ("But {fail}.", "{He} worked all morning, but then {fail}."),
        ("{sorrow}", '"Now I have nothing to give," said {hero}.'),
        ("Then {hero} had an idea. {He} {simple}.", "So {he} sat down and {simple}."),
        (
            "{Hero} was a little shy when {he} knocked at {helper}'s door.",
            "In the evening, {he} went to {helper}'s house.",
        ),
        ('"It is only a small thing," said {hero}.', '"I am sorry that it is so small," said {hero}.'),
        (
            '"You made it yourself," said {helper}. "That is the best present of all."',
            '{Helper}\'s eyes grew bright. "I love it," {hhe} said.',
        ),
        ("{joy}", "Then they drank tea and laughed together."),
    ),
    ("A gift is as big as the love in it.", "It is not the price that makes a present."),
)
