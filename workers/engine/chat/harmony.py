"""The marks of harmony, the form in which gpt-oss writes prompts and answers: messages in channels.

    <|channel|>analysis<|message|>reasoning<|end|><|start|>assistant<|channel|>final<|message|>content<|return|>

A message in the channel `commentary` with a recipient, `to=functions.NAME`, is a call of that tool. Without a recipient
it is content, which the model says before it calls a tool. The recipient stands after the role or after the channel.
"""

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END_MESSAGE, END_CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
MARKS = (START, CHANNEL, MESSAGE, CONSTRAIN, END_MESSAGE, END_CALL, RETURN)
#: The role of the model, after which it writes its answer, and how an answer without reasoning and calls begins.
ASSISTANT, FINAL = "assistant", f"{CHANNEL}final{MESSAGE}"

#: Each mark → a lone surrogate, which stands for it in the text of an answer whose marks are control tokens. No bytes
#: decode to one, so a model that writes the characters of a mark does not write the mark.
STAND_INS = {mark: chr(0xDC80 + i) for i, mark in enumerate(MARKS)}

#: How the header of a message begins that has no mark before its recipient. White space may precede it.
RECIPIENT = "to="
#: The text before the name of a tool: after the role, or after the mark of the channel. Both the grammar and the reader
#: of an answer have these patterns, so that each call that is read was held to its schema.
AFTER_ROLE = r" {0,2}to=functions\."
AFTER_CHANNEL = r"[a-z]{0,32} {1,2}to=functions\."
