"""Which end-to-end tests of OpenAI's routes do not run with a llama-server as the upstream, and why."""

_COUNTS_WORDS = "counts the sim's words; test_llama_server.py counts the upstream's tokens instead"
_NEEDS_A_SLOW_MODEL = "needs a longer answer than the demo model gives, which ends its stories itself"
_COUNTS_PROMPT = "counts the words of the prompt as the sim does; test_llama_server.py continues a conversation"
#: The files whose tests run with a llama-server, except for those in LEFT_OUT.
FILES = (
    "test_openai_package",
    "test_openai_responses",
    "test_langchain",
    "test_conversations",
    "test_openai_burst",
    "test_openai_errors",
)
#: Test → why it does not run here.
LEFT_OUT = {
    "test_the_package_lists_models_and_chats": _COUNTS_WORDS,
    "test_the_package_streams_a_chat_with_usage": _COUNTS_WORDS,
    "test_the_package_gets_a_completion_whole_and_as_a_stream": _COUNTS_WORDS,
    "test_a_yield_raises_an_error_with_the_refusal_if_retries_are_off": _NEEDS_A_SLOW_MODEL,
    "test_an_unsupported_request_raises_the_packages_error_class": "an upstream's requests may have tools, and the "
    "upstream says which fields are wrong; test_llama_server.py has its answers",
    "test_a_deadline_missed_during_a_stream_ends_the_stream_with_an_error": _NEEDS_A_SLOW_MODEL,
    "test_the_packages_own_timeout_sets_the_jobs_deadline": _NEEDS_A_SLOW_MODEL,
    "test_a_response_is_answered_with_the_doors_queue_facts": _COUNTS_WORDS,
    "test_the_stream_helper_follows_a_response_to_its_end": _COUNTS_WORDS,
    "test_a_background_response_can_be_polled_streamed_and_resumed": _COUNTS_WORDS,
    "test_a_background_response_can_be_canceled": _NEEDS_A_SLOW_MODEL,
    "test_closing_a_stream_cancels_its_response_unless_it_runs_in_the_background": _NEEDS_A_SLOW_MODEL,
    "test_a_missed_deadline_is_504_in_the_foreground_and_failed_in_the_background": _NEEDS_A_SLOW_MODEL,
    "test_invoke_returns_an_answer_with_its_usage": _COUNTS_WORDS,
    "test_an_answer_is_streamed_in_pieces": _COUNTS_WORDS,
    "test_a_batch_larger_than_the_inflight_bound_gets_all_its_answers": _COUNTS_WORDS,
    "test_a_response_continues_the_whole_conversation_before_it": _COUNTS_PROMPT,
    "test_instructions_are_not_carried_over": _COUNTS_PROMPT,
    "test_a_streamed_and_a_background_response_can_be_continued": _COUNTS_PROMPT,
    "test_a_deleted_response_is_gone_but_not_the_conversations_that_continue_it": _COUNTS_PROMPT,
    "test_a_conversation_is_as_long_as_a_body_may_be": "its text is longer than the demo model's context",
    "test_a_response_that_is_not_stored_leaves_no_text": _COUNTS_WORDS,
    "test_a_response_that_runs_can_be_neither_continued_nor_deleted": _NEEDS_A_SLOW_MODEL,
    "test_tools_raise_the_error_unsupported_parameter": "an upstream's requests may have tools",
    "test_the_snippet_in_the_docs_works_as_printed": _COUNTS_WORDS,
    "test_with_max_inflight_8_all_fifty_clients_get_answers_by_obeying_the_retry_hints": "needs the sim's known speed",
    "test_a_failed_request_raises_the_error_class_of_its_status_and_is_not_retried": "end before a worker is asked, "
    "but for one, which needs a longer answer than the demo model gives",
    "test_an_unknown_key_raises_an_authentication_error": "ends before a worker is asked",
    "test_a_tenant_that_exceeds_its_rate_gets_a_rate_limit_error_with_a_hint": "is refused before a worker is asked",
    "test_a_full_system_raises_a_server_error_with_a_hint": _NEEDS_A_SLOW_MODEL,
}
#: File → why none of its tests runs here.
FILES_LEFT_OUT = {
    "test_answers_in_form": "its forms are those of our own engine; test_llama_server.py has one of the upstream's",
    "test_behind_nginx": "what is behind the door does not depend on the way to it",
    "test_choices": "compares answers with those of single requests by our own engine; test_upstream_several.py has "
    "those of an upstream",
    "test_demo_model_tools": "makes the demo model call tools with our own engine; test_llama_server.py has "
    "llama-server's calls",
    "test_harmony_model": "has a model of its own",
    "test_http_routes": "its pools are of several engines; test_routes_upstream.py has upstreams",
    "test_http_webhooks": "tells the end of a job, which is the same for all engines",
    "test_openai_batches": "its lines are jobs like all others, and most of its tests need answers of a known length",
    "test_openai_files": "needs no model",
    "test_openai_tools": "constrains calls with our own engine; test_llama_server.py has llama-server's calls",
    "test_responses_bodies": "needs no model",
    "test_responses_reasoning": "its tests play the worker themselves; test_upstream_parts.py has an upstream",
    "test_routes_upstream": "has an upstream of its own",
    "test_upstream": "has an upstream of its own",
    "test_upstream_parts": "has an upstream of its own",
    "test_upstream_several": "has an upstream of its own",
    "test_openai_routes": "its tests play the worker themselves",
    "test_responses": "its tests play the worker themselves",
    "test_embeddings": "makes embeddings with the worker's own model; test_llama_server.py has an upstream's",
}
