"""The guard of the semantic cache: which prompts ask the same, and which only look alike."""

import pytest

from web.semantic_cache.guard import difference


@pytest.mark.parametrize(
    ("asked", "earlier"),
    [
        ("How do I reset my password?", "How can I reset my password?"),
        ("How do I boil an egg?", "Please tell me how to boil an egg."),
        ("How do I reset my password?", "Please tell me how I can reset my password."),
        ("What is the capital of France?", "Could you tell me what the capital of France is?"),
        ("How do I sort a list in Python?", "In Python, how can I sort a list?"),
        ("How do I repair a leaking tap?", "how to fix a leaking tap"),
        ("What is the biggest planet in our solar system?", "What's the largest planet in our solar system?"),
        ("Why is the sky blue?", "Why does the sky look blue?"),
        ("What happened on 3 May 1921?", "What happened on 3  May, 1921?"),
        ("How many grams are in 2,000 pounds?", "How many grams are in 2000 lbs?"),
        ("Wie viel kostet das?", "Wie viel kostet das"),
        ("Must I pay tax on gifts?", "Do I have to pay tax on gifts?"),
        ("How Do I Reset My Password?", "how do i reset my password"),
        ("How many MB are in a GB?", "how many mb are in a gb"),
        ("\ufdfa" * 1_000, "\ufdfa" * 1_000),
    ],
)
def test_prompts_that_ask_the_same_pass(asked: str, earlier: str) -> None:
    assert difference(asked, earlier) is None
    assert difference(earlier, asked) is None


@pytest.mark.parametrize(
    ("reason", "asked", "earlier"),
    [
        ("negations", "Is coffee good for me?", "Is coffee not good for me?"),
        ("negations", "Why doesn't it rain here?", "Why does it rain here?"),
        ("negations", "Which birds never fly?", "Which birds fly?"),
        ("negations", "Wie viel kostet das mit Steuer?", "Wie viel kostet das ohne Steuer?"),
        ("negations", "Ist das Wasser nicht trinkbar?", "Ist das Wasser trinkbar?"),
        ("negations", "Pourquoi il ne pleut pas ici ?", "Pourquoi il pleut ici ?"),
        ("negations", "¿Por qué no llueve aquí?", "¿Por qué llueve aquí?"),
        ("negations", "Perché non piove qui?", "Perché piove qui?"),
        ("negations", "Waarom regent het hier niet?", "Waarom regent het hier?"),
        ("words", "今天会下雨吗", "今天不会下雨吗"),
        ("numbers", "How many grams are in 2 pounds?", "How many grams are in 3 pounds?"),
        ("numbers", "How many grams are in two pounds?", "How many grams are in three pounds?"),
        ("numbers", "What is 5 km in feet?", "What is 5 miles in feet?"),
        ("numbers", "What is 30 Celsius for bakers?", "What is 30 Fahrenheit for bakers?"),
        ("numbers", "What is the 5% rule?", "What is the 5 rule?"),
        ("numbers", "What is 1.5 to the power of 3?", "What is 3 to the power of 1.5?"),
        ("dates", "What happened in June 1944?", "What happened in July 1944?"),
        ("dates", "Are the shops open on Monday?", "Are the shops open on Tuesday?"),
        ("names", "What is the capital of France?", "What is the capital of Spain?"),
        ("order", "Did Anna give the book to Ben?", "Did Ben give the book to Anna?"),
        ("words", "what is the capital of france?", "what is the capital of spain?"),
        ("words", "How do I slice an onion?", "How do I peel an onion?"),
        ("words", "How do I delete a file?", "How do I delete a file permanently?"),
        ("code", "What does `a = 1` do?", "What does `a = 2` do?"),
        ("code", "What is wrong?\n```\nx += 1\n```", "What is wrong?\n```\nx -= 1\n```"),
        ("quotes", 'Translate "good morning" to French', 'Translate "good evening" to French'),
        ("quotes", "What does „links“ mean in the text?", "What does „rechts“ mean in the text?"),
        ("identifiers", "What is my_func for?", "What is my_fun for?"),
        ("identifiers", "What does getName return?", "What does setName return?"),
        ("identifiers", "What is in /etc/hosts for?", "What is in /etc/passwd for?"),
        ("question", "Who wrote Hamlet?", "When was Hamlet written?"),
        ("question", "How long is the bridge?", "How old is the bridge?"),
        ("question", "How many coins are there?", "Where are the coins?"),
        ("tense", "When did Brazil win the cup?", "When will Brazil win the cup?"),
        ("tense", "Should I take aspirin?", "Can I take aspirin?"),
        ("tense", "How do schools handle noise?", "How should schools handle noise?"),
        ("persons", "What is his name?", "What is her name?"),
        ("direction", "which flights go from london to paris", "which flights go to london from paris"),
        ("identifiers", "What does git branch -d do?", "What does git branch -D do?"),
        ("tense", "Do I have to pay tax on gifts?", "Can I pay tax on gifts?"),
        ("tense", "Should I see a doctor?", "Must I see a doctor?"),
        ("plurals", "Write a poem about love", "Write poems about love"),
        ("plurals", "Give me an example of irony", "Give me examples of irony"),
        ("words", "Is this too hot for tea?", "Is this hot for tea?"),
        ("persons", "Did he see her?", "Did she see him?"),
        ("persons", "Do I owe her money?", "Does she owe me money?"),
        ("voice", "Is the suspect being tried?", "Has the suspect tried?"),
        ("voice", "Do I get paid in March?", "Do I pay in March?"),
        ("acronyms", "Can I send a parcel to the US?", "Can I send a parcel to us?"),
        ("dates", "What are the May elections?", "What may the elections be?"),
        ("names", "How many MB are in this?", "How many Mb are in this?"),
        ("identifiers", "What is 2³?", "What is 23?"),
        ("direction", "How do I write a letter to my landlord?", "How do I write a letter for my landlord?"),
        ("direction", "Who do I report a manager to?", "Who do I report to a manager?"),
        ("question", "Whose father is Ann?", "Who is the father of Ann?"),
        ("length", "\ufdfa" * 1_000, "\ufdfa" * 999),
        ("voice", "Which animals are hunted by wolves?", "Which animals hunt wolves?"),
        ("order", "Which foods are vegan but not raw?", "Which foods are not vegan but raw?"),
        ("order", "Do only students pay the fee?", "Do students pay only the fee?"),
        ("order", "How do I wash, dry and cut wool?", "How do I dry, cut and wash wool?"),
        ("connectives", "Is it safe for cats and dogs?", "Is it safe for cats or dogs?"),
        ("order", "How does rain affect the soil?", "How does the soil affect rain?"),
        ("polarity", "How do I enable logging?", "How do I disable logging?"),
        ("polarity", "What should I eat before a run?", "What should I eat after a run?"),
        ("polarity", "How can I increase my heart rate?", "How can I reduce my heart rate?"),
        ("polarity", "Is it unsafe to eat raw eggs?", "Is it safe to eat raw eggs?"),
        ("polarity", "What is the minimum wage?", "What is the maximum wage?"),
        ("polarity", "Are all swans white?", "Are some swans white?"),
    ],
)
def test_prompts_that_differ_in_one_thing_are_told_apart(reason: str, asked: str, earlier: str) -> None:
    assert difference(asked, earlier) == reason
    assert difference(earlier, asked) == reason
